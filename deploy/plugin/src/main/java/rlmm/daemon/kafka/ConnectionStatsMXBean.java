package rlmm.daemon.kafka;

/** The way to the daemon, {@code rlmm.daemon:type=connection,part=...,broker=...}. */
public interface ConnectionStatsMXBean {
    /** Whether the daemon answers now. */
    boolean isConnected();

    /** How often it was connected to; all but the first are reconnects. */
    long getConnects();

    /** Streams that are open now. */
    long getOpenStreams();

    /** Segments that were read from the daemon's own file, without its help but for the file's name. */
    long getFilesOpened();

    /** Streams that stopped in a segment, and wait for a moment for whoever reads on there. */
    long getStreamsParked();

    /** Streams that went on where an earlier one had stopped, without a question to the daemon. */
    long getStreamsResumed();

    /** Streams that were closed before their end, which cancels them at the daemon's side. */
    long getStreamsClosedEarly();

    /** Streams that broke before their end: cut, silent for too long, or not the bytes that were stored. */
    long getStreamsBroken();

    /** Look-ups that the segment of a look-up a moment before answered, without a question to the daemon. */
    long getLookupsReused();

    /** Deletes that were refused at once because one of the same topic had just failed. */
    long getDeletesRefused();
}
