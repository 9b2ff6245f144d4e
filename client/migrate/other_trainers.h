// Detection of the trainer that a configuration file is of. Configurations of torchtitan, DeepSpeed and
// Hugging Face accelerate are converted (trainer_job.h). Those of axolotl, NeMo and PyTorch Lightning, the
// config.json of a Hugging Face model, and a job spec are not: one error reports their kind. Read as a
// run_config.yaml, each would produce a dozen unrelated errors.
#pragma once

#include "base/spec_text/located_violation.h"
#include "base/spec_text/yaml_tree.h"
#include "client/migrate/option_names.h"

namespace fsdpd {

// Sets `*trainer` by the keys of `root`, or returns the error not_of_megatron. REQUIRES: `root` is a map.
LocatedViolations FindTrainer(const TextNode& root, Trainer* trainer);

// The same for a TOML file, whose first section is at `section`.
LocatedViolations FindTrainerOfToml(const TextNode& root, const Place& section, Trainer* trainer);

}  // namespace fsdpd
