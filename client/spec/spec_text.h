// Parser of job specs: YAML or JSON to v1::JobSpec by reflection, so that a new proto field needs no code.
//
//   names      as in the proto; camelCase of canonical proto JSON is accepted too
//   enums      short lower-case name (optim_grads_params) or full name; never a number
//   auto       leaves an `optional` scalar or an enum unset
//   *_bytes    accept sizes ("1.5GiB")
//   numbers    1e4 is a valid integer; NaN and infinity are rejected; quoted numbers are accepted, because
//              canonical proto JSON quotes 64-bit integers
//
// The parser collects all errors, each with file, line, column and field path. The rest of the spec can still
// be validated. Rule ids: those of yaml_tree.h for syntax errors, and unknown_field, duplicate_field,
// wrong_type, unknown_value, out_of_range, two_of_oneof, no_value, bad_set. The coordinator validates the
// values (fsdp/plan/rules/rules.h). Pure functions.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "base/spec_text/located_violation.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct SpecText {
  v1::JobSpec spec;  // Complete if no entry of `violations` is an error.
  LocatedViolations
      violations;  // At most 100. Includes warnings about files that the spec names (spec_file.h).
  // Fields that the text has but `spec` lacks: values of a wrong type, and the likely targets of misspelled
  // names. CheckJob() does not report them as missing.
  std::vector<std::string> unparsed;
  bool is_tree = false;  // The text has fields; otherwise there is nothing to validate.
  FieldPlaces places;    // Positions of all fields in the text; "" is the whole text.
};

// `file` is the file name in errors. Each of `sets` is "path=value" and overrides the text, in order:
// "train.steps=20", "data.tokens[0].path=x". The value is YAML; "path=" sets an empty string.
SpecText ParseSpec(absl::string_view text, const std::string& file,
                   const std::vector<std::string>& sets = {});

}  // namespace fsdpd
