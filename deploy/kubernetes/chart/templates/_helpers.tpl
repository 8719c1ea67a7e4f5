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
