package rlmm.daemon.kafka;

/** The last bytes that a reader got of a segment, by their position in it. */
final class BulkTail {
    /** Some batches of a producer's default size: the broker begins again with the batch that it got in part. */
    static final int BYTES = 128 * 1024;

    private byte[] ring;
    private long begin;
    private long end;

    BulkTail(long start) {
        this.begin = start;
        this.end = start;
    }

    /** Whether everything from here to the reader's place is kept. */
    boolean reaches(long position) {
        return begin <= position && position <= end;
    }

    /** Takes in what follows. */
    void add(byte[] source, int at, int count) {
        if (ring == null) {
            ring = new byte[BYTES];
        }
        int kept = Math.min(count, BYTES);
        int from = (int) ((end + count - kept) % BYTES);
        int first = Math.min(kept, BYTES - from);
        System.arraycopy(source, at + count - kept, ring, from, first);
        System.arraycopy(source, at + count - kept + first, ring, 0, kept - first);
        end += count;
        begin = Math.max(begin, end - BYTES);
    }

    /** Copies from `position` on, at least one byte; the position is kept, and not the end. */
    int copy(long position, byte[] target, int at, int count) {
        int from = (int) (position % BYTES);
        int copied = (int) Math.min(Math.min(count, end - position), BYTES - from);
        System.arraycopy(ring, from, target, at, copied);
        return copied;
    }
}
