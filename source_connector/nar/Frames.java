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

    static final int OPEN = 1;
    static final int ACK = 2;
    static final int FAIL = 3;
    static final int CLOSE = 4;
    static final int TAKEN = 5;
    static final int REFUSED = 6;
    static final int OPENED = 16;
    static final int SCHEMA = 17;
    static final int RECORD = 18;
    static final int LOG = 19;
    static final int METRIC = 20;
    static final int ERROR = 21;

    private Frames() {
    }

    /** A frame as it came: its type and the bytes behind it. */
    record Frame(int type, ByteBuffer body) {
    }

    /** `format` is 0 for key-value-avro, 1 for key-value-json, 2 for json; no topic is the source's own one. */
    record SchemaFrame(int id, int format, String name, String keySchema, String valueSchema, String topic) {
        static SchemaFrame of(ByteBuffer body) throws IOException {
            return new SchemaFrame(body.getInt(), body.get(), text(body), text(body), text(body), text(body));
        }
    }

    record RecordFrame(long seq, int schemaId, long eventTime, byte[] key, byte[] value, Map<String, String> properties) {
        static RecordFrame of(ByteBuffer body) throws IOException {
            long seq = body.getLong();
            int schemaId = body.getInt();
            long eventTime = body.getLong();
            byte[] key = bytes(body);
            boolean hasValue = body.get() != 0;
            byte[] value = bytes(body);
            int count = body.getShort() & 0xFFFF;
            Map<String, String> properties = new LinkedHashMap<>();
            for (int i = 0; i < count; i++) {
                properties.put(text(body), text(body));
            }
            return new RecordFrame(seq, schemaId, eventTime, key, hasValue ? value : null, properties);
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
        int type = in.readUnsignedByte();
        // Grows with what comes: memory is not taken for what a broken child only claims.
        byte[] body = in.readNBytes(length - 1);
        if (body.length < length - 1) {
            throw new EOFException("the child ended in the middle of a frame");
        }
        return new Frame(type, ByteBuffer.wrap(body));
    }

    static byte[] seq(int type, long seq) {
        return ByteBuffer.allocate(13).putInt(9).put((byte) type).putLong(seq).array();
    }

    static byte[] empty(int type) {
        return ByteBuffer.allocate(5).putInt(1).put((byte) type).array();
    }

    static byte[] open(String json) {
        byte[] body = json.getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(5 + body.length).putInt(1 + body.length).put((byte) OPEN).put(body).array();
    }

    static byte[] taken(int schemaId) {
        return ByteBuffer.allocate(9).putInt(5).put((byte) TAKEN).putInt(schemaId).array();
    }

    static byte[] refused(int schemaId, String reason) {
        byte[] text = reason.getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(13 + text.length).putInt(9 + text.length).put((byte) REFUSED).putInt(schemaId)
                .putInt(text.length).put(text).array();
    }

    static String text(ByteBuffer body) throws IOException {
        return new String(bytes(body), StandardCharsets.UTF_8);
    }

    private static byte[] bytes(ByteBuffer body) throws IOException {
        int size = body.getInt();
        if (size < 0 || size > body.remaining()) {
            throw new IOException("the child wrote a field of " + size + " bytes where " + body.remaining() + " are left");
        }
        byte[] data = new byte[size];
        body.get(data);
        return data;
    }
}
