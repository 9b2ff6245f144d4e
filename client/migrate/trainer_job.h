// Conversion of a run of any trainer into a job spec: of Megatron by megatron_rules.h and megatron_job.h,
// and of torchtitan, DeepSpeed and Hugging Face accelerate by the tables of option_tables.h. Defaults of a
// trainer are written out where fsdpd's differ.
//
// Files of DeepSpeed and accelerate have no model, data and length, since a training script sets them. The
// spec then lacks these parts, and the warning `partial_spec` names them.
#pragma once

#include <string>

#include "client/migrate/megatron_job.h"
#include "client/migrate/settings.h"

namespace fsdpd {

// Returns all violations; `*job` is complete only if none is an error and `partial_spec` is not among them.
// `file` is the place of violations without a setting.
LocatedViolations ConvertRun(Settings* settings, const Cluster& cluster, const std::string& file,
                             v1::JobSpec* job);

}  // namespace fsdpd
