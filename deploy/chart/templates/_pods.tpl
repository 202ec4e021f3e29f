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

{{/* Startup and liveness ask the admin port, which answers from before a broker reads its data and a member joins:
     gRPC's port answers only after that, and a probe of it would kill a broker that has much to read, again and again.
     Liveness never asks for readiness, which would kill a member in the middle of its drain. Kubernetes' gRPC probes
     speak no TLS: with it, the admin port tells readiness, too. */}}
{{- define "broadsheet.probes" -}}
{{- $scheme := include "broadsheet.scheme" . | upper }}
startupProbe:
  httpGet: {port: admin, path: /livez, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  {{- if .Values.tls.secret }}
  httpGet: {port: admin, path: /readyz, scheme: {{ $scheme }}}
  {{- else }}
  grpc: {port: {{ .port }}}
  {{- end }}
  periodSeconds: 5
livenessProbe:
  httpGet: {port: admin, path: /livez, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/* Where pods of a component run, and as whom: given its values. */}}
{{- define "broadsheet.placement" -}}
{{- with .serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
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
