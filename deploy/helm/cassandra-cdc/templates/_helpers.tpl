{{- define "cassandra-cdc.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "cassandra-cdc.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "cassandra-cdc.agentOptions" -}}
{{- $own := dict
  "contactPoints" "127.0.0.1"
  "cdcRawDirectory" (printf "%s/cdc_raw" .Values.agent.dataPath)
  "cdcWorkingDir" .Values.agent.workingDir
  "pulsarServiceUrl" .Values.pulsar.serviceUrl
  "pulsarAdminUrl" .Values.pulsar.adminUrl
  "httpAddress" "0.0.0.0"
  "httpPort" .Values.agent.httpPort -}}
{{- range $name := keys $own }}
{{- if hasKey $.Values.agent.options $name }}
{{- fail (printf "agent.options.%s: the chart sets this option itself: remove it (values.yaml shows the values of the chart)" $name) }}
{{- end }}
{{- end }}
{{- merge $own .Values.agent.options | toYaml }}
{{- end }}

{{/* line.yaml of the watch and `cdc resolved`: addresses of Pulsar, topic prefix and subscription of the agents. */}}
{{- define "cassandra-cdc.lineOptions" -}}
{{- $own := dict
  "pulsarServiceUrl" .Values.pulsar.serviceUrl
  "pulsarAdminUrl" .Values.pulsar.adminUrl
  "namespace" .Values.sources.namespace -}}
{{- merge (dict) .Values.watch.line $own (pick .Values.agent.options "topicPrefix" "eventsSubscriptionName") | toYaml }}
{{- end }}

{{/* The settings that Kubernetes' Pod Security Standard "restricted" requires of a container. */}}
{{- define "cassandra-cdc.restricted" -}}
runAsNonRoot: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The agent's container, for a pod that has Cassandra and the volumes of cassandra-cdc.agentVolumes. */}}
{{- define "cassandra-cdc.agent" -}}
name: cassandra-cdc-agent
image: {{ include "cassandra-cdc.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: ["--config", "/etc/cassandra-cdc/agent.yaml"]
{{- with .Values.agent.environmentSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
ports:
  - name: cdc-http
    containerPort: {{ .Values.agent.httpPort }}
livenessProbe:
  httpGet: {path: /healthz, port: cdc-http}
  initialDelaySeconds: 30
  periodSeconds: 30
  failureThreshold: 20
readinessProbe:
  # Ready also without Pulsar: the pod is that of Cassandra, which has to serve then. /readyz is for alarms.
  tcpSocket: {port: cdc-http}
securityContext:
  runAsUser: {{ .Values.agent.userId }}
  readOnlyRootFilesystem: true
  {{- include "cassandra-cdc.restricted" . | nindent 2 }}
resources:
  {{- toYaml .Values.agent.resources | nindent 2 }}
volumeMounts:
  - name: {{ .Values.agent.dataVolume }}
    mountPath: {{ .Values.agent.dataPath }}
  - name: cassandra-cdc-agent
    mountPath: /etc/cassandra-cdc
    readOnly: true
  - name: cassandra-cdc-tmp
    mountPath: /tmp
{{- end }}

{{- define "cassandra-cdc.agentVolumes" -}}
- name: cassandra-cdc-agent
  configMap:
    name: {{ .Release.Name }}-agent
- name: cassandra-cdc-tmp
  emptyDir: {}
{{- end }}
