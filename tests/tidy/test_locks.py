"""Every build checks locks (.bazelrc), which is only useful if clang reads the annotations."""

import re
import subprocess

import pytest

from harness.programs import ROOT

GUARDED = """#include "base/mutex.h"
class Counter {
 public:
  void Add() {
    %s
    ++count_;
  }
 private:
  fsdpd::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};
"""


@pytest.mark.parametrize("lock, right", [("fsdpd::MutexLock lock(&mutex_);", True), ("", False)],
                         ids=["under its lock", "without"])
def test_guarded_members_require_their_mutex(tmp_path, lock, right):
    source = tmp_path / "counter.cc"
    source.write_text(GUARDED % lock)
    flags = re.findall(r"^build --copt=(-Werror=thread-safety)", (ROOT / ".bazelrc").read_text(), re.MULTILINE)
    done = subprocess.run(["clang-14", "-std=c++17", "-fsyntax-only", f"-I{ROOT}", "-Wthread-safety", *flags, source],
                          capture_output=True, text=True)
    assert (done.returncode == 0) == right, done.stderr
    assert right or "requires holding mutex 'mutex_'" in done.stderr
