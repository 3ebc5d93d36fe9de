package quota

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

func exceeded(t *testing.T, err *fault.Error) {
	t.Helper()
	if err == nil || err.Code != workerpb.ErrorCode_ERROR_CODE_QUOTA_EXCEEDED || err.RetryAfter <= 0 {
		t.Errorf("the error is %v, QUOTA_EXCEEDED with retry_after is due", err)
	}
}

func TestWhatIsHeldIsBounded(t *testing.T) {
	q := New(Limits{Opening: 1, Sessions: 2, Streams: 3, Requests: Rate{1, 1}, Control: Rate{1, 1}})
	for i, take := range []func(string) (func(), *fault.Error){q.Opening, q.Session, q.Stream} {
		var dones []func()
		for range i + 1 {
			done, err := take("a")
			if err != nil {
				t.Fatal(err)
			}
			dones = append(dones, done)
		}
		_, err := take("a")
		exceeded(t, err)
		if done, err := take("b"); err != nil {
			t.Errorf("another principal is refused: %v", err)
		} else {
			done()
		}
		dones[0]()
		dones[0]() // counts once
		if _, err := take("a"); err != nil {
			t.Errorf("what was given back cannot be taken: %v", err)
		}
		_, err = take("a")
		exceeded(t, err)
	}
}

func TestRatesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Limits{Opening: 1, Sessions: 1, Streams: 1, Requests: Rate{10, 3}, Control: Rate{10, 3}})
		for _, spend := range []func(string) *fault.Error{q.Request, q.Control} {
			for range 3 {
				if err := spend("a"); err != nil {
					t.Fatal(err)
				}
			}
			err := spend("a")
			exceeded(t, err)
			if other := spend("b"); other != nil {
				t.Errorf("another principal is refused: %v", other)
			}
			time.Sleep(err.RetryAfter) // of the bubble's clock
			if err := spend("a"); err != nil {
				t.Errorf("after retry_after: %v", err)
			}
		}
	})
}

// Accounts of those who come once and never again do not pile up; one that holds something stays.
func TestIdleAccountsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Limits{Opening: 1, Sessions: 1, Streams: 1, Requests: Rate{1, 1}, Control: Rate{1, 1}})
		if _, err := q.Session("stays"); err != nil {
			t.Fatal(err)
		}
		for i := range 3 * most {
			if err := q.Request(fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
			if i%most == 0 {
				time.Sleep(2 * time.Second) // of the bubble's clock
			}
		}
		if n := len(q.accounts); n > most+1 {
			t.Errorf("%d accounts are open", n)
		}
		_, err := q.Session("stays")
		exceeded(t, err)
	})
}
