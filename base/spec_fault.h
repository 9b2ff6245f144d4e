// A fault of a job spec together with the place where a person wrote it, as a compiler would print it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/violation.h"

namespace fsdpd {

struct Place {
  std::string file;       // "job.yaml", or "--set train.steps=x" for a value of the command line.
  int line = 0;           // From 1; 0 when the place is not known.
  int column = 0;         // From 1, in bytes.
  std::string name = {};  // What the field is called there, where that is not the spec's name for it.
};

struct SpecFault {
  Place place;
  Violation violation;
};

using SpecFaults = std::vector<SpecFault>;

// Where each field of a spec was written, by field path.
using FieldPlaces = std::map<std::string, Place>;

// The violation at the place of its field, or of the nearest enclosing field that was written.
SpecFault Locate(const Violation& violation, const FieldPlaces& places);

bool HasErrors(const SpecFaults& faults);

// One line, whatever stands in a spec: control characters are escaped ("\\x1b"), so that no name draws on a
// terminal, and of a word that nobody would read to its end the beginning is shown.
// "job.yaml:4:9: error: unknown field fsdp.stratgy; did you mean strategy? [unknown_field]"
std::string Render(const SpecFault& fault);

// The text with its control characters escaped; UTF-8 stays.
std::string Escaped(const std::string& text);

}  // namespace fsdpd
