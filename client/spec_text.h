// JobSpec as people write it: YAML or JSON to v1::JobSpec by reflection, so that a new proto field needs no
// code.
//
//   names      as in the proto; camelCase of canonical proto JSON is accepted too
//   enums      by short lower-case name (optim_grads_params) or full name; never by number
//   auto       leaves an `optional` scalar or an enum unset
//   *_bytes    take sizes ("1.5GiB")
//   numbers    1e4 is an integer where it is whole; NaN and infinity are refused; quoted numbers are
//   accepted,
//              because canonical proto JSON quotes 64-bit integers
//
// All faults are collected, each with file, line, column and field path. Rule ids: those of yaml_tree.h for
// text that is no tree, and unknown_field, duplicate_field, wrong_type, unknown_value, out_of_range,
// two_of_oneof, no_value, bad_set. What values mean together is judged elsewhere (fsdp/plan/rules.h, by the
// coordinator).
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "client/spec_fault.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct SpecText {
  v1::JobSpec spec;    // Complete when `faults` is empty.
  SpecFaults faults;   // At most 100.
  FieldPlaces places;  // Of every field that was written; "" is the whole text.
};

// `file` is the name that faults carry. Each of `sets` is "path=value", applied over the text in order:
// "train.steps=20", "data.tokens[0].path=x". The value is read as YAML; nothing after the "=" is an empty
// string.
SpecText ParseSpec(absl::string_view text, const std::string& file,
                   const std::vector<std::string>& sets = {});

}  // namespace fsdpd
