// A violation of a job spec together with its position in the file, rendered like a compiler error.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/spec_text/violation.h"

namespace fsdpd {

struct Place {
  std::string file;       // "job.yaml", or "--set train.steps=x" for a command-line value.
  int line = 0;           // From 1; 0 if unknown.
  int column = 0;         // From 1, in bytes.
  std::string name = {};  // Name of the field in that file, if it differs from the name in the spec.
};

struct LocatedViolation {
  Place place;
  Violation violation;
};

using LocatedViolations = std::vector<LocatedViolation>;

// Position of each field of a spec, by field path.
using FieldPlaces = std::map<std::string, Place>;

// The violation at the position of its field, or of the nearest enclosing field.
LocatedViolation Locate(const Violation& violation, const FieldPlaces& places);

bool HasErrors(const LocatedViolations& violations);

// Renders one line, whatever the spec contains: control characters are escaped ("\\x1b"), so that no name
// controls a terminal, and long words are truncated. "job.yaml:4:9: error: unknown field fsdp.stratgy; did
// you mean strategy? [unknown_field]"
std::string Render(const LocatedViolation& located);

// Escapes control characters; UTF-8 is unchanged.
std::string Escaped(const std::string& text);

}  // namespace fsdpd
