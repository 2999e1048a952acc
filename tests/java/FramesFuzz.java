package org.cassandracdc.source;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Random;

/**
 * Gives the host's reader frames that were changed at random: arguments are a seed, how many, and right frames as hex.
 * Ends with the input's hex when anything but the two exceptions comes out of it that the host takes for a broken child.
 */
public final class FramesFuzz {
    private static final byte[][] LARGE = {
        {-1, -1, -1, -1}, {0x7f, -1, -1, -1}, {(byte) 0x80, 0, 0, 0}, {0, 0, 0, 0}, {4, 0, 0, 0}, {3, -1, -1, -1},
    };

    private FramesFuzz() {}

    public static void main(String[] args) {
        Random random = new Random(Long.parseLong(args[0]));
        byte[][] frames = Arrays.stream(args).skip(2).map(HexFormat.of()::parseHex).toArray(byte[][]::new);
        long read = 0;
        long count = Long.parseLong(args[1]);
        for (long tried = 0; tried < count; tried++) {
            byte[] data = changed(random, frames[random.nextInt(frames.length)]);
            try {
                read(data);
                read++;
            } catch (IOException | BufferUnderflowException e) {
                continue;
            } catch (Throwable e) {
                System.out.println("finding " + HexFormat.of().formatHex(data) + " " + e);
                System.exit(1);
            }
        }
        System.out.println("Done " + count + " inputs, " + read + " read");
    }

    private static void read(byte[] data) throws IOException {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(data));
        for (Frames.Frame frame = Frames.read(in); frame != null; frame = Frames.read(in)) {
            switch (frame.type()) {
                case SCHEMA -> Frames.SchemaFrame.of(frame.body());
                case RECORD -> Frames.RecordFrame.of(frame.body());
                case METRIC -> {
                    Frames.text(frame.body());
                    frame.body().getDouble();
                }
                case ERROR -> Frames.text(frame.body());
                default -> { }
            }
        }
    }

    private static byte[] changed(Random random, byte[] frame) {
        byte[] data = frame.clone();
        for (int changes = 1 + random.nextInt(4); changes > 0 && data.length > 0; changes--) {
            int at = random.nextInt(data.length);
            switch (random.nextInt(6)) {
                case 0 -> data[at] ^= (byte) (1 << random.nextInt(8));
                case 1 -> data[at] = (byte) random.nextInt();
                case 2 -> data = Arrays.copyOf(data, at);
                case 3 -> put(data, at, LARGE[random.nextInt(LARGE.length)]);
                case 4 -> put(data, at, ByteBuffer.allocate(4).putInt(random.nextInt(64)).array());
                default -> data = joined(data, Arrays.copyOfRange(data, at, data.length));
            }
        }
        // A length that is allowed but not there costs what it says, so most inputs claim what they have.
        if (data.length > 4 && random.nextInt(64) > 0) {
            put(data, 0, ByteBuffer.allocate(4).putInt(data.length - 4).array());
        }
        return data;
    }

    private static void put(byte[] data, int at, byte[] bytes) {
        System.arraycopy(bytes, 0, data, at, Math.min(bytes.length, data.length - at));
    }

    private static byte[] joined(byte[] first, byte[] second) {
        byte[] both = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, both, first.length, second.length);
        return both;
    }
}
