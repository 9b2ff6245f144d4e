#!/usr/bin/env bash
# Runs one pytest file as a Bazel test (third_party/rules/pytest.bzl): `run_file.sh tests/integration/test_x.py [FLAG...]`.
#
# The test runs in a directory that looks like a clone and holds copies of its declared inputs, so that an undeclared
# file is missing instead of silently stale. The environment is the same on every machine, except for what machine.txt
# records, which is an input too.
set -euo pipefail
[ -z "${TEST_SHARD_STATUS_FILE-}" ] || touch "$TEST_SHARD_STATUS_FILE"

clone=$TEST_TMPDIR/clone
# In /tmp, as the path of a Unix socket has at most 107 characters. The name is the same in every run of this test, so a
# run reclaims what a killed one left.
scratch=/tmp/fsdpd-test-$(sha256sum <<<"$TEST_TMPDIR" | cut -c1-10)
# A run of this test whose Bazel server was killed continues, and would remove the new run's files when it ends.
former=$(cat "$scratch/pid" 2>/dev/null || :)
former_runs() { [ -n "$former" ] && grep -qszxF "TEST_TMPDIR=$TEST_TMPDIR" "/proc/$former/environ"; }
if former_runs; then
  kill -TERM "$former" 2>/dev/null || :
  for _ in {1..600}; do  # 60 s.
    former_runs || break
    sleep 0.1
  done
  # Without its EXIT trap, which would remove the new run's files.
  ! former_runs || kill -KILL "$former" 2>/dev/null || :
fi
clean() { rm -rf "$clone" "$scratch" || :; }
trap clean EXIT
clean
# Not links: a test that writes to one would write to the source tree.
cp -RL --reflink=auto "$TEST_SRCDIR/$TEST_WORKSPACE" "$clone"
mkdir -m 700 "$scratch"
echo $$ > "$scratch/pid"

machine() { sed -n "s/^$1=//p" "$clone/machine.txt"; }
mkdir "$clone/.build"
ln -s .. "$clone/.build/bin"
ln -s "$(machine python)" "$clone/.python"
ln -s "$(machine tools)" "$clone/.tools"

# Limits and capabilities come from the Bazel server, which may be older than machine.txt or of another shell.
ulimit -n "$(machine open_files)" && grep -q "^CapEff:\s$(machine capabilities)$" /proc/self/status || {
  echo "run_file.sh: the Bazel server has other limits or capabilities than machine.txt records; run: bazel shutdown" >&2
  exit 1
}

# Without /usr/local: Debian's packages, whose versions are in machine.txt, install nothing there.
export HOME XDG_CACHE_HOME PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
export TMPDIR=$scratch PYTHONDONTWRITEBYTECODE=1 FSDPD_SCREENS=$TEST_UNDECLARED_OUTPUTS_DIR/screens
HOME=$(machine home)
XDG_CACHE_HOME=$(machine cache)

cd "$clone"
# Pages and packages ask git for files and a commit: the clone has a repository of its own, not the user's.
git init -q
git config core.excludesFile /dev/null
git -c user.name=test -c user.email=test@localhost commit -q --allow-empty -m inputs

# Runs in the background because bash handles signals only between commands. tests/conftest.py ends pytest on SIGTERM as
# on Ctrl-C, so that fixtures stop what they started.
trap 'kill -TERM ${pytest-} 2>/dev/null || :' INT TERM
.python/bin/python -m pytest "$@" -m "not nightly and not gpu" --junitxml="$XML_OUTPUT_FILE" --basetemp="$scratch/pytest" &
pytest=$!
code=0
while :; do
  wait $pytest && code=0 || code=$?
  kill -0 $pytest 2>/dev/null || break
done
if [ $code != 0 ]; then  # Logs of the daemons, for outputs.zip in .build/testlogs.
  (cd "$scratch" && find . -name '*.log' -size -1024k -exec cp --parents -t "$TEST_UNDECLARED_OUTPUTS_DIR" {} +) || :
fi
exit $code
