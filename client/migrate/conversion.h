// State of one conversion: the Megatron settings that it reads, the job spec that it writes, and the
// violations that it reports.
//
// The converters (megatron_model.h, megatron_training.h, megatron_precision.h, megatron_job.cc)
// receive it in this order. A converter may read fields that an earlier one wrote into the job. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/migrate/settings.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

class SpecConversion {
 public:
  // `read` and `written` must outlive the conversion. `file` is the place of violations without a setting.
  SpecConversion(Settings* read, std::string file, v1::JobSpec* written)
      : settings(*read), job(*written), file_(std::move(file)) {}

  // Reports a violation at the setting's place, with the name as written there ("--lr", "optimizer.lr"). Does
  // nothing if the value contains an unexpanded shell variable, or if the setting is missing and the text is
  // incomplete (Settings::incomplete), because the setting may be correct then. `setting` may be empty.
  void AddViolation(const char* rule, ViolationLevel level, const char* setting, const std::string& reason,
                    const std::string& fix);
  void Error(const char* rule, const char* setting, const std::string& reason, const std::string& fix) {
    AddViolation(rule, ViolationLevel::kError, setting, reason, fix);
  }
  // Reports a setting whose value changes in the job, with the values before and after.
  void Adjust(const char* rule, const char* setting, const std::string& reason, const std::string& before,
              const std::string& after);

  // True if the setting is unset or its value is one of `known`. Reports an error for any other value: a
  // misspelled choice would otherwise silently train with the default.
  bool CheckChoice(const char* rule, const char* setting, const std::set<std::string>& known);

  // Returns the dtype, or nullopt if the setting is unset or `auto`. Also reports an error for an unknown
  // dtype. The spec's rules decide whether a known dtype is supported.
  std::optional<v1::DType> Type(const char* setting);

  // Returns the value, or 0 after reporting an error if the setting is not set.
  int64_t Required(const char* name);

  // Returns a length that Megatron counts either in steps or in samples. Samples are divided by the job's
  // global batch and rounded down: 1000 samples with a batch of 64 are 15 steps.
  std::optional<int64_t> Steps(const char* iterations, const char* samples);

  // Saturating product, because values in the input have no bound.
  static int64_t Times(int64_t a, int64_t b);

  Settings& settings;
  v1::JobSpec& job;
  LocatedViolations violations;

 private:
  const std::string file_;
};

}  // namespace fsdpd
