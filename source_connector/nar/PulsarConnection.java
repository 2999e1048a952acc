package org.cassandracdc.source;

import java.lang.reflect.Method;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * How this instance reaches its broker, for the child to reach it too. The client's interface does not tell; its
 * implementation does, and lives in another class loader, hence the reflection. What cannot be found is left out: the
 * child then asks for the option.
 */
final class PulsarConnection {
    private static final Map<String, String> GETTERS = new LinkedHashMap<>();

    static {
        GETTERS.put("serviceUrl", "getServiceUrl");
        GETTERS.put("authPluginClassName", "getAuthPluginClassName");
        GETTERS.put("authParams", "getAuthParams");
        GETTERS.put("tlsTrustCertsFilePath", "getTlsTrustCertsFilePath");
        GETTERS.put("tlsAllowInsecureConnection", "isTlsAllowInsecureConnection");
        GETTERS.put("tlsHostnameVerificationEnable", "isTlsHostnameVerificationEnable");
    }

    private PulsarConnection() {
    }

    static Map<String, String> of(PulsarClient client) {
        Map<String, String> found = new LinkedHashMap<>();
        Object configuration = get(client, "getConfiguration");
        if (configuration != null) {
            GETTERS.forEach((name, getter) -> {
                Object value = get(configuration, getter);
                if (value != null && !value.toString().isEmpty()) {
                    found.put(name, value.toString());
                }
            });
        }
        return found;
    }

    private static Object get(Object object, String getter) {
        if (object == null) {
            return null;
        }
        try {
            Method method = object.getClass().getMethod(getter);
            method.setAccessible(true);
            return method.invoke(object);
        } catch (ReflectiveOperationException | RuntimeException e) {
            return null;
        }
    }
}
