#include "core/text/glob.h"

#include "tests/support/catch.h"

using ottava::glob_matches;

TEST_CASE("globs match whole names") {
  CHECK(glob_matches("layers.*.feed_forward.w2", "layers.12.feed_forward.w2"));
  CHECK(glob_matches("*", ""));
  CHECK(glob_matches("*w2", "layers.0.w2"));
  CHECK(glob_matches("a*b*c", "aXbYbc"));
  CHECK(glob_matches("*norm*", "a/hidden/.norm.weight"));
  CHECK_FALSE(glob_matches("layers.1.*", "layers.11.w2"));
  CHECK_FALSE(glob_matches("w2", "layers.0.w2"));
  CHECK_FALSE(glob_matches("a*b", "ab c"));
}

TEST_CASE("globs know one character, sets and escapes") {
  CHECK(glob_matches("w?", "w2"));
  CHECK_FALSE(glob_matches("w?", "w"));
  CHECK(glob_matches("layers.[0-3].*", "layers.2.w1"));
  CHECK_FALSE(glob_matches("layers.[0-3].*", "layers.12.w1"));
  CHECK(glob_matches("w[!2]", "w1"));
  CHECK_FALSE(glob_matches("w[!2]", "w2"));
  CHECK(glob_matches("a[", "a["));
  CHECK(glob_matches("a\\*", "a*"));
  CHECK_FALSE(glob_matches("a\\*", "ab"));
}
