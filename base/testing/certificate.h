// Self-signed certificates for tests, created with the openssl program as in an installation.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace fsdpd {

// Writes `stem`.crt and `stem`.key. `flags`: additional arguments of `openssl req`.
inline void MakeCertificate(const std::string& stem, const std::string& subject,
                            const std::string& flags = "") {
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '" + subject +
      "' -keyout " + stem + ".key -out " + stem + ".crt " + flags + " 2>/dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

// Replaces `stem`.crt by a certificate of the same key that expired yesterday.
inline void ReplaceWithExpiredCertificate(const std::string& stem) {
  const std::string command = "openssl x509 -in " + stem + ".crt -signkey " + stem + ".key -days -1 -out " +
                              stem + ".crt.new 2>&1 && mv " + stem + ".crt.new " + stem + ".crt";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

// The line that `openssl x509 -serial` prints for `stem`.crt.
inline std::string PrintedSerial(const std::string& stem) {
  const std::string command = "openssl x509 -noout -serial -in " + stem + ".crt > " + stem + ".serial";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::string line;
  std::getline(std::ifstream(stem + ".serial"), line);
  return line;
}

}  // namespace fsdpd
