#include "coordinator/access/api_method.h"

#include "base/api/api_table.h"

namespace fsdpd {
namespace {

constexpr bool kReads = false, kChanges = true;
constexpr PrincipalRole kViewer = PrincipalRole::kViewer, kSubmitter = PrincipalRole::kSubmitter,
                        kOperator = PrincipalRole::kOperator;
constexpr std::optional<ReaderKind> kNoReader, kWatch = ReaderKind::kWatch, kLogs = ReaderKind::kLogs;

#define FSDPD_UNARY(method, handler, standby, role, own, effect, retry, reader) \
  {#method, /*streams=*/false, role, own, effect, reader},
#define FSDPD_STREAM(method, handler, standby, role, own, effect, retry, reader) \
  {#method, /*streams=*/true, role, own, effect, reader},

constexpr ApiMethod kMethods[] = {FSDPD_API_TABLE(FSDPD_UNARY, FSDPD_STREAM)};

#undef FSDPD_UNARY
#undef FSDPD_STREAM

}  // namespace

const ApiMethod* FindApiMethod(absl::string_view name) {
  for (const ApiMethod& method : kMethods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace fsdpd
