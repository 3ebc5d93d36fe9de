package mutants

const (
	rings     = "services/worker/internal/session/ring.go"
	ringsLive = "services/worker/internal/session/live/ring.go"
	ringsRPC  = "services/worker/internal/rpc/ring.go"
	hearsay   = "services/worker/internal/session/live/hops.go"
)

// ringMutants act on what the ring brings otherwise than on what the chain does, or let somebody in who is not the tail.
func ringMutants() []Mutant {
	return []Mutant{
		{"ring.never-offered", []string{"RNG-1"}, rings, "return c.place.first && !c.place.last && c.hop.Shard.Head() && c.hop.Ring != \"\"", "return false"},
		{"ring.offered-to-nobody", []string{"RNG-3"}, rings, "c.place.first && !c.place.last && c.hop", "c.place.first && c.hop"},
		{"ring.heard-and-not-acted-on", []string{"RNG-5"}, rings, "\t\tc.emit(RungFirst{})\n\t\tc.goOnWith(s, index, t.GetId(), t.GetLast())", "\t\tc.emit(RungFirst{})"},
		{"ring.not-counted", []string{"RNG-10"}, rings, "\t\tc.emit(RungFirst{})\n", ""},
		{"ring.acted-on-twice", []string{"RNG-5"}, answer, "case r == nil || s.state != tables.StepForwarded || rung:", "case r == nil || s.state != tables.StepForwarded:"},
		{"ring.told-the-driver", []string{"RNG-5"}, rings, "\t\tc.emit(RungFirst{})\n",
			"\t\tc.emit(RungFirst{})\n\t\tc.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Token{Token: &workerpb.Token{StepId: s.id, Index: t.Index, Id: t.Id}}})\n"},
		{"ring.two-ids-by-the-chain", []string{"RNG-6"}, answer, "if rung && r.known[t.GetIndex()] != t.GetId() {", "if false {"},
		{"ring.two-ids-by-the-ring", []string{"RNG-6"}, rings, "case known[index] != t.GetId():", "case false:"},
		{"ring.blames-itself", []string{"RNG-6"}, rings, "hops[len(hops)-1].GetHop()", "hops[0].GetHop()"},
		{"ring.index-ahead-passed-over", []string{"RNG-6"}, rings, "case index > uint32(len(known)):\n", "case index > uint32(len(known)) && true:\n\t\treturn\n\tcase index > uint32(len(known)):\n"},
		{"ring.last-goes-on", []string{"RNG-7"}, rings, "c.goOnWith(s, index, t.GetId(), t.GetLast())", "c.goOnWith(s, index, t.GetId(), false)"},
		{"ring.beyond-max-tokens", []string{"RNG-7", "GEN-1"}, answer, "case last || index+1 >= r.max:", "case last:"},
		{"ring.any-key", []string{"RNG-3"}, rings, "case !c.Owns(h.GetSessionKey()):", "case false:"},
		{"ring.any-attempt", []string{"RNG-3"}, rings, "h.GetAttempt() != c.attempt ||", "h.GetAttempt() > c.attempt ||"},
		{"ring.of-a-later-attempt", []string{"RNG-3"}, rings, "h.GetAttempt() != c.attempt ||", "h.GetAttempt() < c.attempt ||"},
		{"ring.twice", []string{"RNG-3"}, ringsLive, "if s.rung != nil {\n\t\treturn nil", "if false {\n\t\treturn nil"},
		{"ring.unknown-session-denied", []string{"RNG-3"}, ringsLive, "if s == nil {\n\t\treturn nil, fault.New(workerpb.ErrorCode_ERROR_CODE_SESSION_UNKNOWN,", "if s == nil {\n\t\treturn nil, fault.New(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED,"},
		{"ring.id-of-any-size", []string{"RNG-9", "VER-2"}, rings, "case t.Id == nil || t.GetId() >= h.Shard.Vocab:", "case t.Id == nil:"},
		{"ring.index-assumed", []string{"RNG-9"}, rings, "case t.Index == nil:", "case false:"},
		{"ring.unknown-fields-passed-over", []string{"RNG-9", "VER-1"}, ringsRPC, "if err := r.server.strict(m); err != nil {", "if err := r.server.strict(m); err != nil && false {"},
		{"ring.outlives-its-attempt", []string{"RNG-10"}, ringsLive, "\t\tclose(s.rung.over)\n", ""},
		{"ring.not-dialled", []string{"RNG-2"}, rings, "if at := c.open.GetRing(); at != nil && c.place.last {", "if at := c.open.GetRing(); at != nil && c.place.hub {"},
		{"ring.hello-of-the-first-attempt", []string{"RNG-2"}, rings, "SessionKey: c.open.GetSessionKey(), Attempt: c.attempt,", "SessionKey: c.open.GetSessionKey(), Attempt: 1,"},
		{"ring.first-token-not-sent", []string{"RNG-4"}, rings, "if s.run != nil && c.open.GetRing() != nil {", "if s.run != nil && c.open.GetRing() != nil && m.GetIndex() > 0 {"},
		{"ring.last-not-marked", []string{"RNG-4"}, rings, "Id: m.Id, Last: m.GetLast()}", "Id: m.Id}"},
		{"ring.address-not-read", []string{"OPN-16"}, checkOpen, "if o.GetRing() != nil && !addressable(o.GetRing().GetAddress()) {", "if false {"},
		{"ring.token-waits-for-the-chain", []string{"RNG-5"}, rings, "if s == nil || s.run == nil || s.state != tables.StepForwarded || s.answer != nil {", "if s == nil || s.run == nil || s.state != tables.StepForwarded || s.answer != nil || s.sampled < t.GetIndex() {"},
	}
}

// hearsayMutants say something else of later hops than was seen.
func hearsayMutants() []Mutant {
	return []Mutant{
		{"hops.not-told", []string{"HLT-6"}, worker, "h.Hops = s.options.Directory.Hops()", "_ = s.options.Directory.Hops"},
		{"hops.next-one-alone", []string{"HLT-6"}, hearsay, "if i >= len(route) {", "if i >= len(route) || i > 0 {"},
		{"hops.always-reachable", []string{"HLT-6"}, hearsay, "e.reachable, e.at = false, time.Now()", "e.reachable, e.at = true, time.Now()"},
		{"hops.never-back", []string{"HLT-6"}, hearsay, "\t\te.reachable, e.at = true, time.Now()\n\t\tif rtt > 0 {", "\t\te.at = time.Now()\n\t\tif rtt > 0 {"},
		{"hops.always-fresh", []string{"HLT-6"}, hearsay, "Age: durationpb.New(time.Since(e.at))}", "Age: durationpb.New(0)}"},
		{"hops.never-refreshed", []string{"HLT-6"}, hearsay, "if e := h.hops[hop.GetAddress()]; e != nil {", "if e := h.hops[hop.GetAddress()]; e == nil && false {"},
		{"hops.places-from-zero", []string{"HLT-6"}, hearsay, "Index: proto.Uint32(uint32(i) + 1), WorkerId: ref", "Index: proto.Uint32(uint32(i)), WorkerId: ref"},
		{"hops.decide-readiness", []string{"HLT-2", "HLT-6"}, worker, "h.Hops = s.options.Directory.Hops()", "h.Hops = s.options.Directory.Hops()\n\tfor _, hop := range h.Hops {\n\t\th.Ready = h.Ready && hop.GetReachable()\n\t}"},
	}
}
