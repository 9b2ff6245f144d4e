// Warnings about training data, each reported once: a step or an evaluation without any target that counts
// (the loss is 0 and nothing is trained), and documents that never end, as with a data.document_end_token of
// another tokenizer.
//
// Targets are counted over all ranks, so all ranks warn alike; document ends are counted in the tokens that
// this rank reads. Pure. Call order: Take for each step, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct StepData {
  int64_t step = 0;
  int64_t targets = 0;                        // Targets that count, in the global batch.
  std::optional<int64_t> evaluation_targets;  // After the step; nullopt: no evaluation.
  int64_t tokens_read = 0;                    // By this rank.
  int64_t document_ends = 0;                  // Tokens of tokens_read that end a document.
};

class DataWarnings {
 public:
  // Documents are assumed to be shorter than this: so many tokens without an end mean a wrong end token.
  static constexpr int64_t kLongestDocument = int64_t{1} << 20;

  DataWarnings(const Spec& spec, int64_t steps_done);  // Completed before this attempt.

  // Returns the warnings of one step, usually none.
  std::vector<std::string> Take(const StepData& data);

 private:
  void TakeTargets(const StepData& data, std::vector<std::string>* warnings);
  void TakeDocuments(const StepData& data, std::vector<std::string>* warnings);

  const DataConfig data_;
  const int64_t first_step_;
  const int64_t last_step_;
  int64_t without_target_ = 0;  // Steps without a target.
  bool warned_of_evaluation_ = false;
  bool awaits_document_end_;  // No end was read yet, and no warning given.
  int64_t tokens_read_ = 0;
};

}  // namespace fsdpd
