{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Templates use only what Go's text/template has: Debian's kubectl renders them in the tests. */ -}}
{{- define "vitamin.labels" -}}
{app.kubernetes.io/name: vitamin, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end -}}
{{- define "vitamin.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end -}}
{{- define "vitamin.fenced" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}
{{- /* Strings stay strings for YAML. Helm reads every number of the values as a float. */ -}}
{{- define "vitamin.scalar" -}}
{{- $type := printf "%T" . -}}
{{- if eq $type "string" }}{{ printf "%q" . }}
{{- else if eq $type "float64" }}{{ printf "%.0f" . }}
{{- else }}{{ printf "%v" . }}{{ end -}}
{{- end -}}
