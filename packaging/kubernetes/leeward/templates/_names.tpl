{{- define "leeward.image" -}}
{{ required "image: an image with leeward in it; packaging/serve/Dockerfile makes one" .Values.image }}
{{- end }}
{{- /* A container that has its user, and no right of root's. */}}
{{- define "leeward.user" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
capabilities: {drop: [ALL]}
{{- end }}
{{- /* Tokens are this user's alone, and no link: so they are copied out of their secret. */}}
{{- define "leeward.tokens" -}}
- name: tokens
  image: {{ include "leeward.image" . }}
  command: [install, -m, "600", /secret/serve.json, /state/serve.json]
  securityContext: {{- include "leeward.user" . | nindent 4 }}
    seccompProfile: {type: RuntimeDefault}
  resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 32Mi}}
  volumeMounts:
    - {name: secret, mountPath: /secret, readOnly: true}
    - {name: state, mountPath: /state}
{{- end }}
{{- define "leeward.placed" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
