// What a job keeps in a checkpoint: which numbers of a rank, under which names (job_keys.h), in which file of
// it.
//
// Each rank writes what it owns, of what several ranks own the first; rank 0 what is no shard. Everything
// follows from the plan: any rank can lay out the file of any other.
//
// Pure, but for ReadState.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_file.h"
#include "fsdp/checkpoint/dcp_reader.h"
#include "fsdp/checkpoint/job_keys.h"
#include "fsdp/checkpoint/training_state.h"
#include "fsdp/plan/layout/layout.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// By moment, as torch names them.
std::vector<std::string> MomentNames(const OptimizerConfig& optimizer);
// "layer.0.attention.wq".
std::string ParamName(const Layout& layout, const Bucket& bucket, int slot);

// Whose checkpoint it is.
struct JobLabel {
  std::string job;                     // The job's id; empty outside of a service.
  std::string spec;                    // The job's spec as JSON; may be empty.
  int attempt = 1;                     // Part of file names: each attempt has its own.
  std::vector<std::string> data = {};  // RankData::Traits(): its token files.
};

// Where the numbers of a piece lie on the rank that writes it.
struct StoredRun {
  enum class What { kMain, kMoment, kStepsTaken };
  What what = What::kMain;
  int moment = 0;
  int bucket = 0;
  int64_t begin = 0;  // Of the bucket's main piece, in elements.
};

struct JobFile {
  DcpFile file;
  std::vector<StoredRun> runs;  // By piece of the file.

  bool empty() const { return file.pieces.empty() && file.values.empty(); }
};

// `layout`: of the rank's stage; `whole`: of all of the model, of which rank 0 writes what is there once.
JobFile JobFileOf(const Spec& spec, const Layout& layout, const Layout& whole, const MeshPosition& position,
                  const TrainingState& state, const JobLabel& label);

// What of a job of this spec and layout the checkpoint lacks, has in another shape, or has too much, one a
// line; none where it can be loaded. Parameters alone where `optimizer` is false.
std::vector<std::string> DifferencesOf(const Spec& spec, const Layout& layout, const DcpIndex& index,
                                       bool optimizer);

// What a checkpoint that is not ours does not say follows from its iteration: samples by the spec's batch.
absl::StatusOr<TrainingState> ReadState(const DcpReader& reader, const Spec& spec);

// What of the optimizer's state a job of this spec has no use for, by name ("exp_avg"), where its optimizer
// is another one than wrote it.
std::vector<std::string> UnreadState(const Spec& spec, const DcpIndex& index);

// The job that wrote it, and its spec as JSON; empty where it does not say.
absl::StatusOr<std::string> ReadJobId(const DcpReader& reader);
absl::StatusOr<std::string> ReadJobSpec(const DcpReader& reader);
// JobLabel::data.
absl::StatusOr<std::vector<std::string>> ReadJobData(const DcpReader& reader);

}  // namespace fsdpd
