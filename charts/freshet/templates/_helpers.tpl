{{/* Names, labels, the image, and what follows from the limits. */}}
{{- define "freshet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "freshet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "freshet.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "freshet.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "freshet.controller" -}}
{{ include "freshet.fullname" . }}-controller
{{- end }}

{{- define "freshet.reader" -}}
{{ include "freshet.fullname" . }}-reader
{{- end }}

{{- define "freshet.selector" -}}
app.kubernetes.io/name: {{ include "freshet.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "freshet.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "freshet.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: freshet
{{- end }}

{{- define "freshet.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "freshet.controller" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "freshet.readerAccount" -}}
{{- $account := .Values.reader.serviceAccount -}}
{{- if $account.create -}}
{{- default (include "freshet.reader" .) $account.name -}}
{{- else -}}
{{- required "reader.serviceAccount.name is needed where reader.serviceAccount.create is false" $account.name -}}
{{- end -}}
{{- end }}

{{- define "freshet.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* A quantity of memory in bytes. */}}
{{- define "freshet.bytes" -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $number := float64 (trimSuffix $unit $text) -}}
{{- $factors := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if not (hasKey $factors $unit) -}}
{{- fail (printf "resources.limits.memory: %s is not a quantity of memory; write it as in 2Gi" $text) -}}
{{- end -}}
{{- int64 (mulf $number (float64 (get $factors $unit))) -}}
{{- end }}

{{/* The merge memory budget in bytes: what a value says, else half of the limit. The other half is the program, the
     manifests of its tables, and what the allocator keeps. */}}
{{- define "freshet.budget" -}}
{{- $limit := int64 (include "freshet.bytes" .Values.resources.limits.memory) -}}
{{- $budget := div $limit 2 -}}
{{- if .Values.mergeBudget -}}
{{- $budget = int64 (include "freshet.bytes" .Values.mergeBudget) -}}
{{- end -}}
{{- if lt $budget 67108864 -}}
{{- fail "the merge budget is below 64Mi: raise resources.limits.memory to 128Mi or more, or mergeBudget to 64Mi or more" -}}
{{- end -}}
{{- if gt (mul $budget 4) (mul $limit 3) -}}
{{- fail "mergeBudget is more than three quarters of resources.limits.memory: the Pod would be killed before its budget holds; lower it or raise the limit" -}}
{{- end -}}
{{- $budget -}}
{{- end }}

{{/* What the operator is told in its file. */}}
{{- define "freshet.config" -}}
{{- $engine := dict "pollInterval" .Values.engine.pollInterval "slots" .Values.engine.slots -}}
{{- $storage := dict "grants" .Values.storage.grants "allowedEndpoints" .Values.storage.allowedEndpoints -}}
{{- dict "defaults" .Values.defaults "limits" .Values.limits "storage" $storage "engine" $engine | toYaml -}}
{{- end }}

{{/* What the controller does to objects of the namespaces that it watches. */}}
{{- define "freshet.rules" -}}
- apiGroups: [freshet.dev]
  resources: [experiments]
  verbs: [list, watch, patch]
- apiGroups: [freshet.dev]
  resources: [experiments/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* What the reader does to objects of the namespaces that it watches. */}}
{{- define "freshet.readerRules" -}}
- apiGroups: [freshet.dev]
  resources: [experiments]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
