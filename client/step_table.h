// What is shown and exported of a job's steps: one table of quantities, with a name for each form.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/steps.pb.h"

namespace fsdpd {

struct StepQuantity {
  const char* name;                                       // A column of CSV.
  const char* tag;                                        // As TensorBoard and W&B group it: "train/loss".
  std::optional<double> (*value)(const v1::StepRecord&);  // Nothing where the step has none.
};

const std::vector<StepQuantity>& StepQuantities();

// Of communication's time, the share with compute beside it; nothing without communication.
std::optional<double> OverlapOf(const v1::StepRecord& record);
double TokensPerSecond(const v1::StepRecord& record);

// Lines with their newlines; times in seconds since 1970, numbers as they round-trip.
std::string StepCsvHeader();
std::string StepCsvRow(const v1::StepRecord& record);

std::vector<std::string> StepTableHeader();
std::vector<std::string> StepTableRow(const v1::StepRecord& record);

// The shortest text that is the same number: "nan" and "inf" where it is none.
std::string NumberText(double value);

}  // namespace fsdpd
