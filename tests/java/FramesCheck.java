package org.cassandracdc.source;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.cassandracdc.source.Frames.Type;

/**
 * The Java side of the golden frames: prints what it writes, and what it reads from the frames given as hex arguments.
 * It lies in the host's package for the sake of its classes.
 */
public final class FramesCheck {
    private FramesCheck() {}

    public static void main(String[] args) throws Exception {
        HexFormat hex = HexFormat.of();
        Map<String, Object> instance = new TreeMap<>();
        instance.put("guarantee", null);
        instance.put("instances", 2);
        Map<String, Object> document = new TreeMap<>();
        document.put("config", Map.of("events", Map.of("topic", List.of("a", "b\"\\\n"))));
        document.put("instance", instance);
        document.put("pulsar", Map.of("isTlsAllowInsecureConnection", true));
        byte[] json = Json.of(document).getBytes(StandardCharsets.UTF_8);
        System.out.println("open " + hex.formatHex(Frames.frame(Type.OPEN, json)));
        System.out.println("ack " + hex.formatHex(Frames.answer(Type.ACK, 258, "")));
        System.out.println("fail " + hex.formatHex(Frames.answer(Type.FAIL, 1, "")));
        System.out.println("close " + hex.formatHex(Frames.frame(Type.CLOSE, new byte[0])));
        System.out.println("taken " + hex.formatHex(Frames.answer(Type.TAKEN, 7, "")));
        System.out.println("refused " + hex.formatHex(Frames.answer(Type.REFUSED, 7, "é")));
        for (String arg : args) {
            System.out.println(read(hex.parseHex(arg)));
        }
    }

    private static String read(byte[] data) {
        try {
            Frames.Frame frame = Frames.read(new DataInputStream(new ByteArrayInputStream(data)));
            return switch (frame.type()) {
                case SCHEMA -> Frames.SchemaFrame.of(frame.body()).toString();
                case RECORD -> record(Frames.RecordFrame.of(frame.body()));
                case METRIC -> "metric " + Frames.text(frame.body()) + " " + frame.body().getDouble();
                case ERROR -> "error " + Frames.text(frame.body());
                default -> "type " + frame.type();
            };
        } catch (IOException | RuntimeException e) {
            return "refused " + e.getMessage();
        }
    }

    private static String record(Frames.RecordFrame record) {
        HexFormat hex = HexFormat.of();
        String value = record.value() == null ? "null" : hex.formatHex(record.value());
        return "record " + record.seq() + " " + record.schemaId() + " " + record.eventTime() + " "
                + hex.formatHex(record.key()) + " " + value + " " + record.properties();
    }
}
