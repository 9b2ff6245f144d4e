// Assertions that stay enabled in release builds. A CHECK is for bugs: it logs the location and the
// condition, then aborts. Errors that a user, network, disk or GPU can cause are an absl::Status instead.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <utility>

namespace fsdpd {

[[noreturn]] void CheckFailed(const char* file, int line, absl::string_view what);

}  // namespace fsdpd

#define FSDPD_CHECK(condition)                                              \
  do {                                                                      \
    if (!(condition)) ::fsdpd::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#define FSDPD_CHECK_OK(expression)                                                                         \
  do {                                                                                                     \
    const absl::Status fsdpd_check_status = (expression);                                                  \
    if (!fsdpd_check_status.ok()) ::fsdpd::CheckFailed(__FILE__, __LINE__, fsdpd_check_status.ToString()); \
  } while (false)

#define FSDPD_RETURN_IF_ERROR(expression)                      \
  do {                                                         \
    absl::Status fsdpd_return_status = (expression);           \
    if (!fsdpd_return_status.ok()) return fsdpd_return_status; \
  } while (false)

#define FSDPD_CONCAT_INNER(a, b) a##b
#define FSDPD_CONCAT(a, b) FSDPD_CONCAT_INNER(a, b)

// FSDPD_ASSIGN_OR_RETURN(auto value, Compute());
#define FSDPD_ASSIGN_OR_RETURN(declaration, expression)                                           \
  auto FSDPD_CONCAT(fsdpd_or_, __LINE__) = (expression);                                          \
  if (!FSDPD_CONCAT(fsdpd_or_, __LINE__).ok()) return FSDPD_CONCAT(fsdpd_or_, __LINE__).status(); \
  declaration = std::move(FSDPD_CONCAT(fsdpd_or_, __LINE__)).value()
