#include "cairn/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <sstream>

#include "base/status_macros.h"
#include "cairn/options.h"

namespace cairn {
namespace {

TEST(Status, PrintsCodeAndMessage) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status::Ok().ToString(), "Ok");
  const Status status = Error(StatusCode::kNotFound, "no step {} under {}", 7, "/r");
  EXPECT_FALSE(status.ok());
  std::ostringstream out;
  out << status;
  EXPECT_EQ(out.str(), "NotFound: no step 7 under /r");
}

TEST(Status, CodesHaveUniqueNames) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    names.insert(StatusCodeName(static_cast<StatusCode>(code)));
  }
  EXPECT_EQ(names.size(), 15U);
  EXPECT_FALSE(names.contains("?"));
}

TEST(Status, SystemCallErrorNamesOperationAndErrno) {
  const auto code = [](int error) { return ErrnoStatus(error, "writing x").code(); };
  EXPECT_EQ(code(ENOSPC), StatusCode::kNoSpace);
  EXPECT_EQ(code(EDQUOT), StatusCode::kNoSpace);
  EXPECT_EQ(code(ENOENT), StatusCode::kNotFound);
  EXPECT_EQ(code(EEXIST), StatusCode::kAlreadyExists);
  EXPECT_EQ(code(EROFS), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(EMFILE), StatusCode::kResourceExhausted);
  EXPECT_EQ(code(EIO), StatusCode::kIoError);
  EXPECT_EQ(ErrnoStatus(EIO, "writing x").message(), "writing x: Input/output error (errno 5)");
}

TEST(Result, HoldsAValueOrAStatus) {
  Result<std::unique_ptr<int>> value(std::make_unique<int>(5));
  Result<std::unique_ptr<int>> error(Status(StatusCode::kCorrupt, "c"));

  ASSERT_TRUE(value.ok());
  EXPECT_TRUE(value.status().ok());
  EXPECT_EQ(**value, 5);
  const std::unique_ptr<int> taken = *std::move(value);
  EXPECT_EQ(*taken, 5);
  EXPECT_FALSE(error.ok());
  EXPECT_EQ(error.status(), Status(StatusCode::kCorrupt, "c"));
}

TEST(Result, AnOkStatusIsNoError) {
  const Result<int> wrong{Status::Ok()};
  EXPECT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.status().code(), StatusCode::kInternal);
}

Result<int> Half(int n) {
  if (n % 2 != 0) return Error(StatusCode::kInvalidArgument, "{} is odd", n);
  return n / 2;
}

Result<int> Quarter(int n) {
  CAIRN_ASSIGN_OR_RETURN(const int half, Half(n));
  CAIRN_RETURN_IF_ERROR(Half(half).status());
  return Half(half);
}

TEST(StatusMacros, ReturnTheFirstError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(7).status().message(), "7 is odd");
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
}

TEST(Deadline, LongSpansAreInfinite) {
  EXPECT_TRUE(Deadline::In(std::chrono::nanoseconds::max()).infinite());
  EXPECT_FALSE(Deadline::Infinite().passed());
  EXPECT_TRUE(Deadline::In(std::chrono::nanoseconds(-1)).passed());
  EXPECT_FALSE(Deadline::In(std::chrono::hours(1)).passed());
}

}  // namespace
}  // namespace cairn
