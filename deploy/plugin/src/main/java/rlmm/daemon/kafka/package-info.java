/**
 * The broker's side of the RLMM daemon: KIP-405's two plugins, both thin callers of the daemon's Unix socket.
 *
 * <p>Nothing here decides what the daemon could decide, and nothing here has to survive a restart. What the package
 * does own is the broker's comfort: calls come back in bounded time, with exactly the exceptions that
 * {@code RemoteLogManager} understands, and the connection heals without anybody's help.
 *
 * <p>Threads: one IO thread per manager owns the request connection (an interrupted thread inside a channel operation
 * closes the channel, and the broker interrupts its readers); callers wait on futures. Bulk answers are read by the
 * caller itself, on a connection that is its own until it closes the stream.
 *
 * <p>From {@code configure} to the first partition that is ready a broker waits for this package's classes to be loaded
 * and for little else. So on that way there are plain loops, no lambdas (a cold JVM spins a class and two or three forms
 * for each), and none of msgpack's values, and what can come later does: {@link WarmUp}.
 */
package rlmm.daemon.kafka;
