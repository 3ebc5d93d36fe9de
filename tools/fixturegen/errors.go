package fixturegen

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// everyError is one ShardError for each code of the taxonomy, with the particulars that its kind has.
func everyError() []Fixture {
	var all []Fixture
	for _, info := range tables.Errors() {
		all = append(all, Fixture{Case: strings.ToLower(info.Name), Message: shardError(info.Code)})
	}
	return all
}

// shardError is an error that w1 reports and w2 has caused, with the table's scope and advice.
func shardError(code workerpb.ErrorCode) *workerpb.ShardError {
	info := tables.ErrorByCode(code)
	return &workerpb.ShardError{
		Code: code, Message: info.Sentence, Scope: info.Scope, Recovery: info.Recovery,
		RetryAfter: retryAfter(info), Origin: hopRef(0), Subject: hopRef(1), Detail: detailOf(code),
	}
}

// retryAfter is set exactly where the advice is to try again.
func retryAfter(info tables.ErrorInfo) *durationpb.Duration {
	switch {
	case info.Code == workerpb.ErrorCode_ERROR_CODE_PREDECESSOR_FAILED:
		return duration(0)
	case info.Recovery == workerpb.Recovery_RECOVERY_RETRY_SAME, info.Recovery == workerpb.Recovery_RECOVERY_RETRY_OTHER:
		return duration(1500 * time.Millisecond)
	}
	return nil
}

// detailOf is the machine-readable part; nil where the contract has none for this code.
func detailOf(code workerpb.ErrorCode) *workerpb.ErrorDetail {
	field := func(path, expected string) *workerpb.ErrorDetail {
		return &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Field{Field: &workerpb.FieldDetail{Path: path, Expected: expected}}}
	}
	version := func(v *workerpb.VersionDetail) *workerpb.ErrorDetail {
		return &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Version{Version: v}}
	}
	switch code {
	case workerpb.ErrorCode_ERROR_CODE_MALFORMED:
		return field("step.generate.sampling.top_p", "0 < top_p ≤ 1")
	case workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE:
		return field("step.prefill.tokens[3]", "below 512")
	case workerpb.ErrorCode_ERROR_CODE_INVALID_GRAMMAR:
		return field("step.generate.sampling.grammar.text", "GBNF with a rule named root")
	case workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION:
		return version(&workerpb.VersionDetail{Theirs: &workerpb.RevisionRange{Min: 2, Max: 3}, Ours: revisions()})
	case workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE:
		return version(&workerpb.VersionDetail{Theirs: revisions(), Ours: revisions(), MissingFeatures: []string{"mtp"}})
	case workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH, workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW:
		return &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Cache{Cache: &workerpb.CacheDetail{
			Length: num(len(prompt)), ChainHash: chainHash(prompt...), Capacity: num(contextLimit),
		}}}
	case workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION:
		return &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Lifecycle{Lifecycle: &workerpb.LifecycleDetail{
			Table: "session", State: tables.SessionNone.String(), Event: tables.SessionEventStep.String(),
		}}}
	}
	return nil
}
