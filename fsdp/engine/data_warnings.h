// What a run warns of its data, each thing once: steps and evaluations without a target that counts, from
// which nothing is learnt although all goes well, and documents that never end, as of another tokenizer's
// data.document_end_token.
//
// Targets are those of all ranks, so that all ranks say the same; which documents end is what this rank has
// read. Pure. Call order: Take for each step, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct StepData {
  int64_t step = 0;
  int64_t targets = 0;                        // That count, of the global batch.
  std::optional<int64_t> evaluation_targets;  // Of the evaluation after the step. None: there was none.
  int64_t tokens_read = 0;                    // By this rank,
  int64_t document_ends = 0;                  // ... and how many of them end a document.
};

class DataWarnings {
 public:
  // No document is so long: who has read that many tokens without an end would read on without one.
  static constexpr int64_t kLongestDocument = int64_t{1} << 20;

  DataWarnings(const Spec& spec, int64_t steps_done);  // Which it goes on from.

  // In words for people, mostly none.
  std::vector<std::string> Take(const StepData& data);

 private:
  void TakeTargets(const StepData& data, std::vector<std::string>* warnings);
  void TakeDocuments(const StepData& data, std::vector<std::string>* warnings);

  const DataConfig data_;
  const int64_t first_step_;
  const int64_t last_step_;
  int64_t without_target_ = 0;  // Steps.
  bool told_of_evaluation_ = false;
  bool awaits_document_end_;  // None was read yet, and nothing said of it.
  int64_t tokens_read_ = 0;
};

}  // namespace fsdpd
