{{- /* The objects are maps, which `set` changes in place: each of these gives no text. */}}

{{- define "fsdpd.changed" }}
{{- $object := .object }}
{{- $values := .root.Values }}
{{- $labels := dict "app.kubernetes.io/name" "fsdpd" }}
{{- if .versioned }}{{- $labels = set $labels "app.kubernetes.io/version" .root.Chart.AppVersion }}{{- end }}
{{- $_ := set $object.metadata "labels" (merge $labels (default dict $object.metadata.labels)) }}
{{- if ne $object.kind "PriorityClass" }}{{- $_ := set $object.metadata "namespace" .root.Release.Namespace }}{{- end }}
{{- $key := printf "%s/%s" $object.kind $object.metadata.name }}
{{- if eq $key "StatefulSet/fsdpd-coordinator" }}{{- include "fsdpd.coordinator" . }}{{- end }}
{{- if eq $key "ConfigMap/fsdpd-quotas" }}
{{- $lines := $object.data.quotas }}
{{- range $project, $ranks := $values.quotas }}{{- $lines = printf "%s%s %d\n" $lines $project (int64 $ranks) }}{{- end }}
{{- $_ := set $object.data "quotas" $lines }}
{{- end }}
{{- if eq $key "ConfigMap/fsdpd-revoked-certificates" }}
{{- $lines := $object.data.serials }}
{{- range $values.coordinator.revokedCertificates }}{{- $lines = printf "%s%s\n" $lines . }}{{- end }}
{{- $_ := set $object.data "serials" $lines }}
{{- end }}
{{- if eq $key "DaemonSet/fsdpd-agent" }}{{- include "fsdpd.agent" . }}{{- end }}
{{- if and (eq $object.kind "DaemonSet") $values.agent.queued.nodes }}{{- include "fsdpd.queued" . }}{{- end }}
{{- if eq $object.kind "PersistentVolumeClaim" }}
{{- $size := ternary $values.claims.dataSize $values.claims.checkpointsSize (eq $object.metadata.name "fsdpd-data") }}
{{- include "fsdpd.claim" (dict "spec" $object.spec "size" $size "class" $values.claims.storageClass) }}
{{- end }}
{{- if eq $object.kind "NetworkPolicy" }}{{- include "fsdpd.policy" . }}{{- end }}
{{- end }}

{{- define "fsdpd.claim" }}
{{- $_ := set .spec.resources.requests "storage" .size }}
{{- if .class }}{{- $_ := set .spec "storageClassName" .class }}{{- end }}
{{- end }}

{{- /* pod, image of the values, root */}}
{{- define "fsdpd.pod" }}
{{- $container := index .template.spec.containers 0 }}
{{- $_ := set .template.metadata.labels "app.kubernetes.io/name" "fsdpd" }}
{{- $_ := set $container "image" (default (printf "%s:%s" $container.image .root.Chart.AppVersion) .image) }}
{{- with .root.Values.images.pullSecrets }}{{- $_ := set $.template.spec "imagePullSecrets" . }}{{- end }}
{{- end }}

{{- define "fsdpd.coordinator" }}
{{- $values := .root.Values }}
{{- $spec := .object.spec }}
{{- $pod := $spec.template.spec }}
{{- $container := index $pod.containers 0 }}
{{- include "fsdpd.pod" (dict "template" $spec.template "image" $values.images.coordinator "root" .root) }}
{{- $_ := set $container "resources" $values.coordinator.resources }}
{{- $args := without $container.args "--web-listen=127.0.0.1:7781" }}
{{- with $values.coordinator.webListen }}{{- $args = append $args (printf "--web-listen=%s" .) }}{{- end }}
{{- $_ := set $container "args" $args }}
{{- $claim := index $spec.volumeClaimTemplates 0 }}
{{- $_ := set $claim.metadata "labels" (dict "app.kubernetes.io/name" "fsdpd") }}
{{- include "fsdpd.claim" (dict "spec" $claim.spec "size" $values.coordinator.storage "class" $values.coordinator.storageClass) }}
{{- if $values.etcd.members }}
{{- $_ := set $spec "replicas" 3 }}
{{- $_ := set $spec "podManagementPolicy" "Parallel" }}
{{- $args := without $container.args "--state-dir=/var/lib/fsdpd" }}
{{- $args = concat $args (list "--store=$(FSDPD_STORE)" "--advertise=$(POD_NAME).fsdpd-coordinator-peers:7777") }}
{{- $args = concat $args (list "--etcd-ca=/etc/fsdpd/etcd/ca.crt" "--etcd-cert=/etc/fsdpd/etcd/tls.crt" "--etcd-key=/etc/fsdpd/etcd/tls.key") }}
{{- $_ := set $container "args" $args }}
{{- $store := dict "name" "FSDPD_STORE" "value" (printf "etcd://%s/%s" $values.etcd.members $values.etcd.prefix) }}
{{- $name := dict "name" "POD_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.name")) }}
{{- $_ := set $container "env" (list $store $name) }}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts (dict "name" "etcd-tls" "mountPath" "/etc/fsdpd/etcd" "readOnly" true)) }}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "etcd-tls" "secret" (dict "secretName" "fsdpd-etcd-tls" "defaultMode" 288))) }}
{{- $_ := set $container "lifecycle" (dict "preStop" (dict "sleep" (dict "seconds" 3))) }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $spec.selector }}
{{- $apart := list (dict "weight" 100 "podAffinityTerm" $term) }}
{{- $_ := set $pod "affinity" (dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $apart)) }}
{{- end }}
{{- end }}

{{- define "fsdpd.agent" }}
{{- $values := .root.Values }}
{{- $agent := $values.agent }}
{{- $pod := .object.spec.template.spec }}
{{- $container := index $pod.containers 0 }}
{{- include "fsdpd.pod" (dict "template" .object.spec.template "image" $values.images.agent "root" .root) }}
{{- $resources := deepCopy $agent.resources }}
{{- if eq $agent.device "cuda" }}
{{- range $bound := list "requests" "limits" }}
{{- $_ := set $resources $bound (set (default dict (get $resources $bound)) "nvidia.com/gpu" (toString $agent.slots)) }}
{{- end }}
{{- end }}
{{- $_ := set $container "resources" $resources }}
{{- if lt (mul $agent.workGib 3072) (mul 10 (add (mul $agent.slots 256) 512)) }}
{{- fail "agent.workGib: too small for two attempts of agent.slots ranks: of each, logs of --log-mib (256 MiB) and 512 MiB of steps" }}
{{- end }}
{{- $said := dict "FSDPD_DEVICE" $agent.device "FSDPD_SLOTS" (toString $agent.slots) "FSDPD_GRACE_MS" (mul $agent.graceSeconds 1000 | toString) "FSDPD_WORK_MIB" (div (mul $agent.workGib 2048) 5 | toString) }}
{{- range $key, $value := $agent.labels }}
{{- $_ := set $container "args" (append $container.args (printf "--label=%s=%s" $key $value)) }}
{{- end }}
{{- range $agent.allowEnv }}{{- $_ := set $container "args" (append $container.args (printf "--allow-env=%s" .)) }}{{- end }}
{{- range $agent.pluginDirs }}{{- $_ := set $container "args" (append $container.args (printf "--plugin-dir=%s" .)) }}{{- end }}
{{- with $agent.nvlinkDomain }}{{- $_ := set $container "args" (append $container.args (printf "--nvlink-domain=%s" .)) }}{{- end }}
{{- range $variable := $container.env }}
{{- if hasKey $said $variable.name }}{{- $_ := set $variable "value" (get $said $variable.name) }}{{- end }}
{{- end }}
{{- range $name, $value := $agent.env }}
{{- $_ := set $container "env" (append $container.env (dict "name" $name "value" $value)) }}
{{- end }}
{{- $_ := set $pod "terminationGracePeriodSeconds" (add $agent.graceSeconds 40) }}
{{- /* Null is a default that a file of values takes away. `helm upgrade --reuse-values` hands it on, without that default. */}}
{{- $selector := dict }}
{{- range $key, $value := $agent.nodeSelector }}
{{- if kindIs "string" $value }}{{- $_ := set $selector $key $value }}{{- end }}
{{- end }}
{{- with $selector }}{{- $_ := set $pod "nodeSelector" . }}{{- end }}
{{- with $agent.tolerations }}{{- $_ := set $pod "tolerations" . }}{{- end }}
{{- range $volume := $pod.volumes }}
{{- if eq $volume.name "shm" }}{{- $_ := set $volume.emptyDir "sizeLimit" $agent.shm }}{{- end }}
{{- if eq $volume.name "work" }}{{- $_ := set $volume.emptyDir "sizeLimit" (printf "%dGi" (int64 $agent.workGib)) }}{{- end }}
{{- end }}
{{- if $values.etcd.members }}
{{- $peers := list }}
{{- range $each := until 3 }}{{- $peers = append $peers (printf "fsdpd-coordinator-%d.fsdpd-coordinator-peers:7777" $each) }}{{- end }}
{{- $args := without $container.args "--coordinator=fsdpd-coordinator:7777" }}
{{- $_ := set $container "args" (prepend $args (printf "--coordinator=%s" (join "," $peers))) }}
{{- end }}
{{- if $values.claims.enabled }}
{{- $patch := (fromYaml (.root.Files.Get "files/components/claims/agent.yaml")).spec.template.spec }}
{{- $_ := set $container "volumeMounts" (concat $container.volumeMounts (index $patch.containers 0).volumeMounts) }}
{{- $_ := set $pod "volumes" (concat $pod.volumes $patch.volumes) }}
{{- range fromYamlArray (.root.Files.Get "files/components/claims/arguments.yaml") }}
{{- $_ := set $container "args" (append $container.args .value) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The DaemonSet becomes the Job of components/queued. */}}
{{- define "fsdpd.queued" }}
{{- $queued := .root.Values.agent.queued }}
{{- $files := "files/components/queued/" }}
{{- $job := fromYaml (.root.Files.Get (printf "%sas-job/job.yaml" $files)) }}
{{- $pods := (fromYaml (.root.Files.Get (printf "%spods.yaml" $files))).spec.template.spec }}
{{- $template := .object.spec.template }}
{{- $_ := set $template "spec" (merge $template.spec $pods) }}
{{- $container := index $template.spec.containers 0 }}
{{- range fromYamlArray (.root.Files.Get (printf "%sarguments.yaml" $files)) }}
{{- $_ := set $container "args" (append $container.args .value) }}
{{- end }}
{{- $count := dict "parallelism" (int64 $queued.nodes) "completions" (int64 $queued.nodes) "template" $template }}
{{- $_ := set .object "spec" (mergeOverwrite $job.spec $count) }}
{{- $_ := set .object.metadata.labels "kueue.x-k8s.io/queue-name" $queued.queue }}
{{- $_ := set .object "kind" $job.kind }}
{{- $_ := set .object "apiVersion" $job.apiVersion }}
{{- end }}

{{- define "fsdpd.policy" }}
{{- $values := .root.Values }}
{{- $spec := .object.spec }}
{{- $prometheus := list (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" $values.monitoring.namespace))) }}
{{- if eq .object.metadata.name "fsdpd-coordinator" }}
{{- if $values.etcd.members }}
{{- $dns := list (dict "port" 53 "protocol" "UDP") (dict "port" 53 "protocol" "TCP") }}
{{- $ports := list }}
{{- range splitList "," $values.etcd.members }}{{- $ports = append $ports (dict "port" (last (splitList ":" .) | int)) }}{{- end }}
{{- $_ := set $spec "egress" (list (dict "ports" (uniq $ports)) (dict "ports" $dns)) }}
{{- end }}
{{- end }}
{{- range $rule := $spec.ingress }}
{{- if and $rule.from (hasKey (index $rule.from 0) "namespaceSelector") }}{{- $_ := set $rule "from" $prometheus }}{{- end }}
{{- end }}
{{- end }}
