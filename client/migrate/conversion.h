// One run of the conversion: the settings that it reads, the job that it writes, and what it has to tell. The
// parts of it (model_of_megatron.h, training_of_megatron.h, precision_of_megatron.h, job_of_megatron.cc) take
// it in turn; a later part may read what an earlier one wrote into the job.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/migrate/settings.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

class Conversion {
 public:
  // All must outlive it. `file` is where faults are that belong to no setting.
  Conversion(Settings* read, std::string file, v1::JobSpec* written)
      : settings(*read), job(*written), file_(std::move(file)) {}

  // At the setting's place and under the name that it was written with. Nothing of a value that nobody here
  // knows, or of a setting that is missing where not all of them are in the text.
  void Fault(const char* rule, FaultLevel level, const char* setting, const std::string& reason,
             const std::string& fix);
  void Error(const char* rule, const char* setting, const std::string& reason, const std::string& fix) {
    Fault(rule, FaultLevel::kError, setting, reason, fix);
  }
  // What is not carried over as it stands, with both values.
  void Adjust(const char* rule, const char* setting, const std::string& reason, const std::string& before,
              const std::string& after);

  // Whether the setting's word is one of `known`, or it is not set. Of another a fault is told, as it would
  // train otherwise without a word.
  bool KnowsWord(const char* rule, const char* setting, const std::set<std::string>& known);

  // Null where it is not set or `auto`; of an unknown dtype an error is added too. The spec's rules judge the
  // others.
  std::optional<v1::DType> Type(const char* setting);

  // 0 and a fault where it is not set.
  int64_t Required(const char* name);

  // A length that Megatron counts in steps or in samples; samples become whole steps of the job's global
  // batch.
  std::optional<int64_t> Steps(const char* iterations, const char* samples);

  // The product, or the largest number where it is more: what people write has no bound.
  static int64_t Times(int64_t a, int64_t b);

  Settings& settings;
  v1::JobSpec& job;
  SpecFaults faults;

 private:
  const std::string file_;
};

}  // namespace fsdpd
