// Static files of the web UI, which BUILD compiles into the program.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/types/span.h>

namespace fsdpd {

struct WebFile {
  absl::string_view path;  // "/page.js"; "/" for page.html.
  absl::string_view text;
};
absl::Span<const WebFile> WebFiles();

}  // namespace fsdpd
