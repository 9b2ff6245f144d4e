// Test fixture that replaces TLS files while a reader has read only a part of them.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "base/temp_dir.h"
#include "base/testing/certificate.h"
#include "coordinator/testing/watched_thread.h"

namespace fsdpd {

class Rereading : public ::testing::Test {
 protected:
  // Creates NAME.crt, self-signed, and NAME.key.
  void MakeCertificate(const std::string& name) { fsdpd::MakeCertificate(dir_.File(name), "/CN=" + name); }
  // Returns whether a second `reread` ends while the first one is still reading `path`, which is replaced
  // meanwhile.
  bool EndsDuringAnother(const std::string& path, const std::function<void()>& reread) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    EXPECT_EQ(remove(path.c_str()), 0);
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    WatchedThread slow(reread);
    const int fifo = open(path.c_str(), O_WRONLY);  // Returns once the slow reader has opened it.
    std::ofstream(path + ".new") << text.str();
    EXPECT_EQ(chmod((path + ".new").c_str(), 0600), 0);
    EXPECT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
    WatchedThread fast(reread);
    const bool ends = fast.EndsBeforeItBlocks();
    EXPECT_EQ(write(fifo, text.str().data(), text.str().size()), static_cast<ssize_t>(text.str().size()));
    close(fifo);
    return ends;
  }

  const TempDir dir_;
};

}  // namespace fsdpd
