package org.cassandracdc.source;

import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** Frames between this host and its child process; the specification is the docstring of host_protocol.py. */
final class Frames {
    static final int MAX_LENGTH = 64 * 1024 * 1024;

    /** The number of a type is its place here. */
    enum Type {
        OPEN, ACK, FAIL, CLOSE, TAKEN, REFUSED, OPENED, SCHEMA, RECORD, METRIC, ERROR
    }

    private Frames() {
    }

    /** A frame as it came: its type and the bytes behind it. */
    record Frame(Type type, ByteBuffer body) {
    }

    record SchemaFrame(int id, int format, String name, String keySchema, String valueSchema, String topic) {
        static SchemaFrame of(ByteBuffer body) throws IOException {
            return new SchemaFrame(body.getInt(), body.get(), text(body), text(body), text(body), text(body));
        }
    }

    record RecordFrame(long seq, int schemaId, long eventTime, byte[] key, byte[] value, Map<String, String> properties) {
        static RecordFrame of(ByteBuffer body) throws IOException {
            Map<String, String> properties = new LinkedHashMap<>();
            RecordFrame frame = new RecordFrame(body.getLong(), body.getInt(), body.getLong(), bytes(body),
                    body.get() == 0 ? null : bytes(body), properties);
            for (int count = body.getShort() & 0xFFFF; count > 0; count--) {
                properties.put(text(body), text(body));
            }
            return frame;
        }
    }

    /** The next frame, or null when the child has closed its side between two frames. */
    static Frame read(DataInputStream in) throws IOException {
        int first = in.read();
        if (first < 0) {
            return null;
        }
        int length = first << 24 | in.readUnsignedByte() << 16 | in.readUnsignedShort();
        if (length < 1 || length > MAX_LENGTH) {
            throw new IOException("the child wrote a frame of " + length + " bytes");
        }
        // Grows with what comes: memory is not taken for what a broken child only claims.
        byte[] data = in.readNBytes(length);
        if (data.length < length) {
            throw new EOFException("the child ended in the middle of a frame");
        }
        if (data[0] < 0 || data[0] >= Type.values().length) {
            throw new IOException("the child wrote a frame of unknown type " + data[0]);
        }
        return new Frame(Type.values()[data[0]], ByteBuffer.wrap(data, 1, length - 1));
    }

    static byte[] frame(Type type, byte[] body) {
        return ByteBuffer.allocate(5 + body.length).putInt(1 + body.length).put((byte) type.ordinal()).put(body).array();
    }

    static byte[] answer(Type type, long number, String text) {
        byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
        return frame(type, ByteBuffer.allocate(8 + utf8.length).putLong(number).put(utf8).array());
    }

    static String text(ByteBuffer body) throws IOException {
        return new String(bytes(body), StandardCharsets.UTF_8);
    }

    private static byte[] bytes(ByteBuffer body) throws IOException {
        int size = body.getInt();
        if (size < 0 || size > body.remaining()) {
            throw new IOException("the child wrote a field of " + size + " bytes in " + body.remaining());
        }
        byte[] data = new byte[size];
        body.get(data);
        return data;
    }
}
