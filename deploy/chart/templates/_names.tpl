{{/* Names and labels. A release's name is at most 40 characters here: pods of a zone add to it. */}}
{{- define "broadsheet.name" -}}
{{- if contains "broadsheet" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-broadsheet" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "broadsheet.labels" -}}
app.kubernetes.io/name: broadsheet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Labels that select pods of a component: (list . "members") */}}
{{- define "broadsheet.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: broadsheet
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "broadsheet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "broadsheet.scheme" -}}
{{ if .Values.tls.secret }}https{{ else }}http{{ end }}
{{- end }}

{{/* Which brokers members use; exactly one kind is right. */}}
{{- define "broadsheet.brokerAddress" -}}
{{- $kinds := list -}}
{{- if .Values.broker.address }}{{ $kinds = append $kinds "broker.address" }}{{ end -}}
{{- if .Values.broker.embedded.enabled }}{{ $kinds = append $kinds "broker.embedded.enabled" }}{{ end -}}
{{- if .Values.broker.gazette.enabled }}{{ $kinds = append $kinds "broker.gazette.enabled" }}{{ end -}}
{{- if ne (len $kinds) 1 }}{{ fail (printf "broker: expected exactly one of address, embedded.enabled and gazette.enabled, got %s" (join ", " $kinds | default "none")) }}{{ end -}}
{{- if .Values.broker.address -}}
{{ .Values.broker.address }}
{{- else if .Values.broker.embedded.enabled -}}
{{ include "broadsheet.scheme" . }}://{{ include "broadsheet.name" . }}-broker.{{ .Release.Namespace }}.svc:8081
{{- else -}}
{{ include "broadsheet.scheme" . }}://{{ include "broadsheet.name" . }}-gazette.{{ .Release.Namespace }}.svc:8081
{{- end -}}
{{- end }}
