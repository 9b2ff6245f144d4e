// JobSpec as people write it: YAML or JSON to v1::JobSpec by reflection, so that a new proto field needs no
// code.
//
//   names      as in the proto; camelCase of canonical proto JSON is accepted too
//   enums      by short lower-case name (optim_grads_params) or full name; never by number
//   auto       leaves an `optional` scalar or an enum unset
//   *_bytes    take sizes ("1.5GiB")
//   numbers    1e4 is an integer where it is whole; NaN and infinity are refused; quoted numbers are
//              accepted, because canonical proto JSON quotes 64-bit integers
//
// All faults are collected, each with file, line, column and field path; what they leave of the spec can be
// judged further. Rule ids: those of yaml_tree.h for text that is no tree, and unknown_field,
// duplicate_field, wrong_type, unknown_value, out_of_range, two_of_oneof, no_value, bad_set. What values mean
// together is judged elsewhere (fsdp/plan/rules/rules.h, by the coordinator).
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "base/spec_fault.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct SpecText {
  v1::JobSpec spec;   // Complete when no fault is an error.
  SpecFaults faults;  // At most 100. Warnings too, of a file that the spec names (spec_file.h).
  // Fields that somebody wrote and that are not in `spec`, for CheckJob(): values of the wrong kind, and what
  // a misspelt field was meant to be.
  std::vector<std::string> unread;
  bool is_tree = false;  // The text has fields at all; else there is nothing to judge.
  FieldPlaces places;    // Of every field that was written; "" is the whole text.
};

// `file` is the name that faults carry. Each of `sets` is "path=value", applied over the text in order:
// "train.steps=20", "data.tokens[0].path=x". The value is read as YAML; nothing after the "=" is an empty
// string.
SpecText ParseSpec(absl::string_view text, const std::string& file,
                   const std::vector<std::string>& sets = {});

}  // namespace fsdpd
