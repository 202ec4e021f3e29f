{{/* What all pods share. */}}
{{- define "broadsheet.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "broadsheet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "broadsheet.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Kubernetes' gRPC probes speak no TLS: with it, the admin port is asked. Liveness never asks for readiness, which would
     kill a member in the middle of its drain. */}}
{{- define "broadsheet.probes" -}}
{{- if .Values.tls.secret }}
startupProbe:
  httpGet: {port: admin, path: /readyz, scheme: HTTPS}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {port: admin, path: /readyz, scheme: HTTPS}
  periodSeconds: 5
livenessProbe:
  httpGet: {port: admin, path: /livez, scheme: HTTPS}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- else }}
startupProbe:
  grpc: {port: {{ .port }}, service: liveness}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  grpc: {port: {{ .port }}}
  periodSeconds: 5
livenessProbe:
  grpc: {port: {{ .port }}, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}
{{- end }}

{{/* Options of who may call and how, which members and the embedded broker share. */}}
{{- define "broadsheet.securityArgs" -}}
{{- if .Values.auth.keysSecret }}
- --auth-keys-file=/etc/broadsheet/auth/keys
{{- end }}
{{- if .Values.auth.allowUnauthenticated }}
- --allow-unauthenticated
{{- else if not (or .Values.auth.keysSecret .Values.tls.verifyClients) }}
{{- fail "auth.keysSecret: expected the name of a Secret with keys (or tls.verifyClients, or auth.allowUnauthenticated): pods must not serve other machines without" }}
{{- end }}
{{- if .Values.tls.secret }}
- --tls-ca=/etc/broadsheet/tls/ca.crt
- --tls-cert=/etc/broadsheet/tls/tls.crt
- --tls-key=/etc/broadsheet/tls/tls.key
{{- end }}
{{- if .Values.tls.verifyClients }}
{{- if not .Values.tls.secret }}{{ fail "tls.verifyClients: expected tls.secret, too" }}{{ end }}
- --tls-client-ca=/etc/broadsheet/tls/ca.crt
{{- end }}
{{- end }}

{{- define "broadsheet.securityMounts" -}}
{{- if .Values.auth.keysSecret }}
- {name: auth, mountPath: /etc/broadsheet/auth, readOnly: true}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /etc/broadsheet/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "broadsheet.securityVolumes" -}}
{{- if .Values.auth.keysSecret }}
- name: auth
  secret: {secretName: {{ .Values.auth.keysSecret }}, defaultMode: 0440}
{{- end }}
{{- if .Values.tls.secret }}
- name: tls
  secret: {secretName: {{ .Values.tls.secret }}, defaultMode: 0440}
{{- end }}
{{- end }}
