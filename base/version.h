// The version of all programs of the project; they are built and deployed together.
#pragma once

namespace fsdpd {

constexpr char kVersion[] = "0.1.0";

}  // namespace fsdpd
