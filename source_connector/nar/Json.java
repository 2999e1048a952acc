package org.cassandracdc.source;

import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** Writes the OPEN document: maps, lists, text, numbers, booleans and null. No library is sure to be there. */
final class Json {
    private static final Pattern ESCAPED = Pattern.compile("[\\x00-\\x1f\"\\\\]");

    private Json() {
    }

    static String of(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(each -> text(each.getKey()) + ":" + of(each.getValue()))
                    .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Json::of).collect(Collectors.joining(",", "[", "]"));
        }
        return value == null || value instanceof Boolean || value instanceof Number ? "" + value : text(value);
    }

    private static String text(Object value) {
        return '"' + ESCAPED.matcher("" + value)
                .replaceAll(each -> String.format("\\\\u%04x", (int) each.group().charAt(0))) + '"';
    }
}
