// Contents of a job's checkpoint: which data of a rank is stored, under which names (job_keys.h), in which
// file.
//
// Each rank writes what it owns; replicated data is written by the first of its ranks, and values that are
// not sharded by rank 0. Everything follows from the plan, so any rank can compute the layout of any other
// rank's file.
//
// Pure, except for ReadState.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_file.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/job/training_state.h"
#include "fsdp/checkpoint/names/base_label.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/plan/layout/layout.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// By moment; torch's names.
std::vector<std::string> MomentNames(const OptimizerConfig& optimizer);
// "layer.0.attention.wq".
std::string ParamName(const Layout& layout, const Bucket& bucket, int slot);

// Identity of the job that writes a checkpoint.
struct JobLabel {
  std::string job;                     // Job id; empty outside of a service.
  std::string spec;                    // The job's spec as JSON; may be empty.
  int attempt = 1;                     // Part of file names, so that attempts do not share files.
  std::vector<std::string> data = {};  // RankData::Traits(): its token files.
  BaseLabel base_model = {};           // Of a LoRA job.
};

// Where the data of a piece is on the rank that writes it.
struct StoredRun {
  enum class What { kMain, kMoment, kStepsTaken };
  What what = What::kMain;
  int moment = 0;
  int bucket = 0;
  int64_t begin = 0;  // Within the bucket's main shard, in elements.
};

struct JobFile {
  DcpFile file;
  std::vector<StoredRun> runs;  // By piece of the file.

  bool empty() const { return file.pieces.empty() && file.values.empty(); }
};

// `layout`: of the rank's stage; `whole`: of the whole model, of which rank 0 writes the values that exist
// once.
JobFile JobFileOf(const Spec& spec, const Layout& layout, const Layout& whole, const MeshPosition& position,
                  const TrainingState& state, const JobLabel& label);

// Part of a checkpoint that a job loads. With LoRA, the first two are those of the adapters.
enum class LoadedPart {
  kTraining,    // Parameters and optimizer state.
  kParameters,  // Parameters only.
  kBaseModel,   // The frozen weights of a LoRA job.
};

// What a checkpoint lacks, has in another shape or has in addition, compared with a job of this spec and
// layout, one per line; empty if it can be loaded.
std::vector<std::string> DifferencesOf(const Spec& spec, const Layout& layout, const DcpIndex& index,
                                       LoadedPart part);

// Values that a checkpoint of another program does not have are derived from its iteration: samples by the
// spec's batch.
absl::StatusOr<TrainingState> ReadState(const DcpReader& reader, const Spec& spec);

// Optimizer state in the checkpoint that a job of this spec does not use because its optimizer differs, by
// name ("exp_avg").
std::vector<std::string> UnreadState(const Spec& spec, const DcpIndex& index);

// The id and the spec (JSON) of the job that wrote it; empty if it does not say.
absl::StatusOr<std::string> ReadJobId(const DcpReader& reader);
absl::StatusOr<std::string> ReadJobSpec(const DcpReader& reader);
// JobLabel::base_model; empty: not of a LoRA job.
absl::StatusOr<BaseLabel> ReadBaseModel(const DcpReader& reader);
// JobLabel::data.
absl::StatusOr<std::vector<std::string>> ReadJobData(const DcpReader& reader);

}  // namespace fsdpd
