package rlmm.daemon.kafka;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.UserPrincipal;

import jdk.net.ExtendedSocketOptions;

/**
 * Who may be the daemon: whoever listens on the socket, as the kernel says. Its path alone proves nothing, since whoever
 * may write in its directory can be at its other end, and name any file of this host for the broker to hand out.
 *
 * <p>With {@code daemon.user} only that user is spoken to. Without, any is, but only this broker's own user, root and
 * {@value #USUAL} may name files.
 */
class Peers {
    /** As whom the units of deploy/systemd start it. */
    private static final String USUAL = "rlmm";
    private static final String ROOT = "root";

    private final String only;

    Peers(PluginConfig config) {
        this(config.daemonUser());
    }

    /** {@code only} is empty for none in particular. */
    Peers(String only) {
        this.only = only;
    }

    /** Whether there is one user only that may be spoken to. */
    boolean areNamed() {
        return !only.isEmpty();
    }

    /**
     * Whether this one may name files.
     *
     * @throws DaemonException it may not even be spoken to
     */
    boolean mayNameFiles(SocketChannel channel) throws DaemonException {
        UserPrincipal peer = peer(channel);
        if (!only.isEmpty()) {
            if (!is(peer, only)) {
                throw DaemonException.disconnected("it runs as " + name(peer) + ", and " + PluginConfig.DAEMON_USER
                    + " says " + only);
            }
            return true;
        }
        return peer != null && (peer.getName().equals(ROOT) || peer.getName().equals(USUAL) || peer.equals(own()));
    }

    /** For a person. */
    String nameOf(SocketChannel channel) {
        return name(peer(channel));
    }

    private static String name(UserPrincipal peer) {
        return peer == null ? "an unknown user" : "user " + peer.getName();
    }

    /** Null where the system does not say; what a test overrides. */
    UserPrincipal peer(SocketChannel channel) {
        try {
            return channel.getOption(ExtendedSocketOptions.SO_PEERCRED).user();
        } catch (IOException | UnsupportedOperationException untold) {
            return null;
        }
    }

    /** A name, or a number that may have a name. */
    private static boolean is(UserPrincipal peer, String wanted) {
        if (peer == null || peer.getName().equals(wanted)) {
            return peer != null;
        }
        try {
            return FileSystems.getDefault().getUserPrincipalLookupService().lookupPrincipalByName(wanted).equals(peer);
        } catch (IOException | UnsupportedOperationException unknown) {
            return false;
        }
    }

    /** The user of this process; null where the system does not say. A test overrides it. */
    UserPrincipal own() {
        try {
            return Files.getOwner(Path.of("/proc/self"));
        } catch (IOException | RuntimeException untold) {
            return null;
        }
    }
}
