#include "fsdp/checkpoint/names/base_label.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <vector>

namespace fsdpd {

std::string BaseLabel::Text() const { return absl::StrCat(type, " ", hash, path.empty() ? "" : " ", path); }

BaseLabel ParseBaseLabel(const std::string& text) {
  std::vector<std::string> fields = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  fields.resize(3);
  return {fields[0], fields[1], fields[2]};
}

}  // namespace fsdpd
