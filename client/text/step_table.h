// Table of the quantities of a step: names for CSV and TensorBoard, and functions that read them from a
// record. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/steps.pb.h"

namespace fsdpd {

struct StepQuantity {
  const char* name;                                       // Column in CSV.
  const char* tag;                                        // Name in TensorBoard and W&B: "train/loss".
  std::optional<double> (*value)(const v1::StepRecord&);  // nullopt if the step lacks it.
};

const std::vector<StepQuantity>& StepQuantities();

// The fraction of communication time that is overlapped with compute; nullopt without communication.
std::optional<double> OverlapOf(const v1::StepRecord& record);
double TokensPerSecond(const v1::StepRecord& record);

// Lines end with a newline. Times are Unix seconds, and numbers have enough digits to round-trip.
std::string StepCsvHeader();
std::string StepCsvRow(const v1::StepRecord& record);

std::vector<std::string> StepTableHeader();
std::vector<std::string> StepTableRow(const v1::StepRecord& record);

// The shortest text that parses to the same number; "nan" and "inf" for non-finite numbers.
std::string NumberText(double value);

}  // namespace fsdpd
