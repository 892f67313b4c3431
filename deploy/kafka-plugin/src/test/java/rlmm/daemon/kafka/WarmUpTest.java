package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

final class WarmUpTest {
    @Test
    void itsAnswerIsOneAndHoldsAValueOfEachKind() throws Exception {
        assertEquals("[\"\",true,0.0,{\"\":0}]", WarmUp.message().toJson());
    }
}
