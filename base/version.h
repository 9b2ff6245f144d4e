// Version of all programs of the project, which are built and deployed together.
#pragma once

namespace fsdpd {

constexpr char kVersion[] = "0.1.0";

}  // namespace fsdpd
