package mutants

const (
	checkOpen = "services/worker/internal/session/checkopen.go"
	opening   = "services/worker/internal/session/opening.go"
	core      = "services/worker/internal/session/core.go"
	revision  = "services/worker/internal/session/revision.go"
	strict    = "services/worker/internal/session/strict.go"
	directory = "services/worker/internal/session/live/directory.go"
	live      = "services/worker/internal/session/live/session.go"
	ending    = "services/worker/internal/session/ending.go"
	access    = "services/worker/internal/rpc/access.go"
	policy    = "services/worker/internal/chain/policy.go"
)

// openMutants let an Open through that must be refused, or refuse it otherwise.
func openMutants() []Mutant {
	return []Mutant{
		{"open.id-of-17-bytes", []string{"VER-2"}, checkOpen, "len(o.GetSessionId()) != 16", "len(o.GetSessionId()) < 16"},
		{"open.key-of-31-bytes", []string{"VER-2"}, checkOpen, "len(o.GetSessionKey()) != 32", "len(o.GetSessionKey()) < 31"},
		{"open.attempt-zero", []string{"VER-2"}, checkOpen, "case o.GetAttempt() == 0:", "case false:"},
		{"open.on-behalf-of-any-length", []string{"VER-2"}, checkOpen, "len(o.GetOnBehalfOf()) > 256", "len(o.GetOnBehalfOf()) > 512"},
		{"open.revision-zero", []string{"VER-2"}, checkOpen, "r.GetMin() == 0 || r.GetMax() < r.GetMin()", "r.GetMax() < r.GetMin()"},
		{"open.needs-without-bound", []string{"VER-2"}, checkOpen, "len(o.GetNeeds()) > 32", "len(o.GetNeeds()) > 64"},
		{"open.newer-revisions-served", []string{"VER-3"}, revision, "return both, both.GetMin() <= both.GetMax()", "return both, true"},
		{"open.ranges-swapped", []string{"VER-3"}, checkOpen,
			"Theirs: o.GetRevisions(), Ours: &workerpb.RevisionRange{Min: r.Min, Max: r.Max}",
			"Ours: o.GetRevisions(), Theirs: &workerpb.RevisionRange{Min: r.Min, Max: r.Max}"},
		{"open.words-judged-before-revisions", []string{"VER-3"}, directory, "if err := spoken.Refuse(m.GetOpen()); err != nil {", "if err := spoken.Refuse(nil); err != nil {"},
		{"open.revision-not-offered", []string{"VER-4"}, opening, "r < c.common().GetMin() || r > c.common().GetMax()", "r < c.common().GetMin()"},
		{"open.revisions-passed-on-whole", []string{"VER-4"}, opening, "Revisions: c.common(), Needs", "Revisions: o.GetRevisions(), Needs"},
		{"words.strict-only-at-the-top", []string{"VER-1"}, strict, "if !f.IsList() {\n\t\treturn r.stranger(v.Message(), at, revision)", "if !f.IsList() {\n\t\tif at != \"open\" && at != \"step\" {\n\t\t\treturn \"\", \"\"\n\t\t}\n\t\treturn r.stranger(v.Message(), at, revision)"},
		{"words.ring-read-leniently", []string{"VER-1"}, "services/worker/internal/rpc/ring.go", "if err := r.server.strict(m); err != nil {", "if err := r.server.strict(m); false {"},
		{"pairs.failure-of-nothing-is-a-breach", []string{"FEN-2"}, "services/worker/internal/session/answer.go", "case s == nil:\n\t\tc.fire(tables.SessionEventStepFailedDownstreamAnswered, cause{})", "case s == nil:\n\t\tc.wrong(\"step %d\", m.GetStepId())"},
		{"pairs.drain-refused-by-nobody", []string{"SHD-4"}, shard, "answer.Error = fault.Of(s.server.typed(err)).Proto()", "answer.Error = fault.Of(err).Proto()"},
		{"pairs.closing-waits-for-ever", []string{"CAN-4"}, ending, "c.hop.Limits.CloseWait", "1000*c.hop.Limits.CloseWait"},
		{"words.value-of-no-revision", []string{"VER-7"}, capability, "Verified: l.Verified,", "Verified: l.Verified + 77,"},
		{"open.needs-ignored", []string{"VER-5"}, checkOpen, "if !h.on(name) {", "if false {"},
		{"open.first-need-named-alone", []string{"VER-5"}, checkOpen, "MissingFeatures: missing,", "MissingFeatures: missing[:min(1, len(missing))],"},
		{"open.context-zero", []string{"VER-2"}, checkOpen, "case o.GetContextTokens() == 0:", "case false:"},
		{"open.egress-assumed", []string{"VER-2"}, checkOpen, "case o.GetEgress() == workerpb.Egress_EGRESS_UNSPECIFIED:", "case false:"},
		{"open.receive-bytes-assumed", []string{"VER-2"}, checkOpen, " || o.GetReceive().Bytes == nil", ""},
		{"open.linger-without-bound", []string{"CAP-6"}, checkOpen, "!within(o.GetLinger(), 0, h.Limits.MaxLinger)", "!within(o.GetLinger(), 0, maxDuration)"},
		{"open.budget-zero", []string{"VER-2"}, checkOpen, "!within(o.GetBudget(), 1, maxDuration)", "!within(o.GetBudget(), 0, maxDuration)"},
		{"open.prefix-hash-of-any-length", []string{"VER-2"}, checkOpen, "p.GetLength() == 0 || len(p.GetChainHash()) != 16", "p.GetLength() == 0"},
		{"open.held-from-a-driver", []string{"OPN-16"}, checkOpen, "h.Shard.Head() && o.GetHeld() != nil", "false"},
		{"open.ring-from-a-driver", []string{"OPN-16"}, checkOpen, "case o.GetRing() != nil:", "case false:"},
		{"open.fingerprint-in-part", []string{"OPN-8"}, checkOpen, "!bytes.Equal(e.GetFingerprint(), h.Fingerprint[:])", "!bytes.Equal(e.GetFingerprint()[:16], h.Fingerprint[:16])"},
		{"open.end-layer-not-compared", []string{"OPN-8"}, checkOpen, "want != h.Shard.Layers", "want.First != h.Shard.Layers.First"},
		{"open.boundary-not-compared", []string{"OPN-8"}, checkOpen, "end.asked != nil && !proto.Equal(end.asked, end.own)", "end.asked != nil && end.own == nil"},
		{"open.context-over-the-limit", []string{"OPN-11"}, checkOpen, "if o.GetContextTokens() > h.Shard.ContextLimit {", "if false {"},
		{"open.limit-not-told", []string{"OPN-11"}, checkOpen, "Capacity: proto.Uint32(h.Shard.ContextLimit)", "Length: proto.Uint32(h.Shard.ContextLimit)"},
		{"open.half-the-room", []string{"OPN-10"}, opening, "Context: c.open.GetContextTokens()}", "Context: (c.open.GetContextTokens() + 1) / 2}"},
		{"open.room-does-not-grow", []string{"OPN-10", "OPN-5"}, opening, "c.cache.reserved >= c.open.GetContextTokens()", "c.cache.reserved > 0"},
		{"open.lingering-not-evicted", []string{"OPN-12"}, live, "s.residence.prefixes.evict() || s.directory.evictOldest(s)", "s.residence.prefixes.evict()"},
		{"open.newest-evicted", []string{"OPN-12"}, directory, "at.Before(since)", "at.After(since)"},
		{"open.features-of-this-hop-alone", []string{"VER-6"}, opening, "common(o.Features, b.GetFeatures())", "o.Features"},
		{"open.revision-not-the-greatest", []string{"VER-4"}, revision, "Max: min(theirs.GetMax(), r.Max)}", "Max: theirs.GetMax()}"},
	}
}

// routeMutants take routes that are none.
func routeMutants() []Mutant {
	return []Mutant{
		{"route.33-hops", []string{"OPN-9"}, checkOpen, "len(o.GetRoute()) >= maxHops", "len(o.GetRoute()) > maxHops"},
		{"route.gap", []string{"OPN-9"}, checkOpen, "case l.First > end:", "case false:"},
		{"route.overlap", []string{"OPN-9"}, checkOpen, "case l.First < end:", "case false:"},
		{"route.empty-hop", []string{"OPN-9"}, checkOpen, "case l.End <= l.First:", "case l.End < l.First:"},
		{"route.beyond-the-model", []string{"OPN-9"}, checkOpen, "if end != h.Shard.NLayer {", "if end < h.Shard.NLayer {"},
		{"route.too-short", []string{"OPN-9"}, checkOpen, "if end != h.Shard.NLayer {", "if end > h.Shard.NLayer {"},
		{"route.return-with-hops", []string{"OPN-9"}, checkOpen, "if len(o.GetRoute()) > 0 {", "if false {"},
		{"route.address-unread", []string{"VER-2"}, checkOpen, "if !addressable(hop.GetAddress()) {", "if hop.GetAddress() == \"\" {"},
		{"route.dials-whom-it-is-told", []string{"DIA-1"}, policy, "if r.allows(host, ip, uint16(port)) {", "if r.allows(host, ip, uint16(port)) || true {"},
		{"route.dials-multicast", []string{"DIA-2"}, policy, "return netip.AddrPort{}, refused(\"%s; chain.allow of this worker does not list it\", address)",
			"return netip.AddrPortFrom(ips[0], uint16(port)), nil"},
		{"route.whole-to-the-next", []string{"OPN-13"}, opening, "Route: o.GetRoute()[1:]", "Route: o.GetRoute()"},
		{"route.budget-not-divided", []string{"OPN-17"}, opening, "return min(all-share, c.openDeadline.Sub(c.now))", "return max(all, share)"},
	}
}

// attemptMutants mix up sessions, keys and attempts.
func attemptMutants() []Mutant {
	return []Mutant{
		{"attempt.any-key", []string{"OPN-3", "CAN-5", "LOS-4"}, core, "subtle.ConstantTimeCompare(key, c.key) == 1", "subtle.ConstantTimeCompare(key, c.key) >= 0"},
		{"attempt.same-again", []string{"OPN-4"}, core, "open.GetAttempt() <= c.attempt", "open.GetAttempt() < c.attempt"},
		{"attempt.lower-supersedes", []string{"OPN-4"}, core, "open.GetAttempt() <= c.attempt", "open.GetAttempt() == c.attempt"},
		{"attempt.key-not-asked-to-end", []string{"CAN-5"}, live, "if !s.core.Owns(key) {", "if false {"},
		{"attempt.bound-ignored", []string{"CAN-5"}, live, "attempt == nil || s.core.Attempt() <= *attempt", "true"},
		{"attempt.bound-off-by-one", []string{"CAN-5"}, live, "s.core.Attempt() <= *attempt", "s.core.Attempt() < *attempt"},
		{"attempt.superseded-not-said", []string{"OPN-5"}, core, "c.endUp(workerpb.CloseReason_CLOSE_REASON_SUPERSEDED,", "c.endUp(workerpb.CloseReason_CLOSE_REASON_ERROR,"},
		{"attempt.cancelled-for-superseded", []string{"OPN-5"}, core, "fault.New(workerpb.ErrorCode_ERROR_CODE_SUPERSEDED,", "fault.New(workerpb.ErrorCode_ERROR_CODE_CANCELLED,"},
		{"attempt.cache-not-adopted", []string{"OPN-5", "LOS-2"}, opening, "c.cache.reserved >= c.open.GetContextTokens()", "false"},
		{"attempt.lingers-for-ever", []string{"TIM-4"}, ending, "c.lingerDeadline = c.now.Add(c.linger)", "c.lingerDeadline = c.now.Add(time.Hour)"},
		{"attempt.never-lingers", []string{"CAN-6"}, ending, "return c.linger > 0 && c.cache.reserved > 0", "return c.linger > time.Hour && c.cache.reserved > 0"},
		{"attempt.end-not-carried-out", []string{"CAN-4"}, directory, "return s.gone(key, attempt, event)", "return nil"},
	}
}

// strictMutants read requests leniently.
func strictMutants() []Mutant {
	return []Mutant{
		{"strict.unknown-fields", []string{"VER-1"}, strict, "if raw := m.GetUnknown(); len(raw) > 0 {", "if raw := m.GetUnknown(); false {"},
		{"strict.unknown-fields-below", []string{"VER-1"}, strict, "return r.stranger(v.Message(), at, revision)", "return \"\", \"\""},
		{"strict.unknown-fields-in-lists", []string{"VER-1"}, strict, "for i := range list.Len() {", "for i := range min(list.Len(), 0) {"},
		{"strict.unknown-enums", []string{"VER-1"}, strict, "f.Enum() != nil && !f.IsList() && !r.speaks", "false && !r.speaks"},
		{"strict.path-not-named", []string{"VER-1", "VER-2"}, strict, "FieldDetail{Path: path,", "FieldDetail{Path: \"\","},
		{"strict.step-ends-the-session", []string{"STP-7"}, core, "s.GetStepId() > c.steps.last {", "s.GetStepId() > c.steps.last && false {"},
		{"strict.unary-calls", []string{"VER-1"}, access, "if m, ok := request.(proto.Message); ok && operationOf", "if m, ok := request.(proto.Message); ok && false && operationOf"},
		{"strict.no-kind", []string{"VER-2"}, core, "c.violation(malformed(\"kind\", \"set\"))", "return c.finish()"},
	}
}
