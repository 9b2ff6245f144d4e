// Command `token new`: writes a new token to a file with mode 0600, and the line with its hash for the
// coordinator's --tokens file to stdout. The token never appears in the output or on a command line.
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/api/bearer_token.h"
#include "base/json_quote.h"
#include "client/commands/commands.h"
#include "client/connect/outcome.h"

namespace fsdpd {
namespace {

// Returns 0 or errno. Fails if the file exists.
int WriteSecret(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  const ssize_t written = write(fd, text.data(), text.size());
  const int error = written < 0 ? errno : written < static_cast<ssize_t>(text.size()) ? ENOSPC : 0;
  close(fd);
  if (error != 0) unlink(path.c_str());
  return error;
}

}  // namespace

int RunTokenCommand(const CommandLine& line, Console* console) {
  const std::string token = NewBearerToken(), hash = HashOfToken(token);
  if (const int error = WriteSecret(line.out, absl::StrCat(token, "\n")); error != 0) {
    console->err << "fsdpctl: cannot write " << line.out << ": " << std::strerror(error) << " [FILE_ERROR]\n";
    return kExitUsage;
  }
  if (line.output == "table") {
    console->out << line.principal << " " << line.role << " " << hash << (line.project.empty() ? "" : " ")
                 << line.project << "\n";
  } else {  // JSON is YAML.
    console->out << "{\"name\": " << JsonQuoted(line.principal) << ", \"role\": " << JsonQuoted(line.role)
                 << ", \"hash\": " << JsonQuoted(hash)
                 << (line.project.empty() ? "" : absl::StrCat(", \"project\": ", JsonQuoted(line.project)))
                 << "}\n";
  }
  return kExitOk;
}

}  // namespace fsdpd
